from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from looseleaf.server.tool_calls import Call, ForcedCalls, NamedCall, TaggedCalls

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": [1, "é"]}}\n</tool_call>'


def read(text: str, cuts: list[int], parallel: bool = True) -> list[object]:
    """Texts joined, calls without their random ids."""
    reader = TaggedCalls(parallel=parallel)
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    parts = [part for a, b in pairwise(bounds) for part in reader.push(text[a:b])]
    joined: list[object] = []
    for part in parts + reader.finish():
        if isinstance(part, Call):
            joined.append((part.name, json.loads(part.arguments)))
        elif joined and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return joined


F = ("f", {"a": [1, "é"]})


@given(st.lists(st.integers(0, 200)))
def test_calls_are_found_however_the_text_is_cut(cuts: list[int]) -> None:
    assert read(CALL, cuts) == [F]
    assert read(f"Let me see.\n{CALL}\n{CALL}", cuts) == ["Let me see.\n", F, F]
    assert read(f"a < b <tool_ {CALL} end", cuts) == ["a < b <tool_ ", F, " end"]
    assert read(CALL.removesuffix("</tool_call>"), cuts) == [F]
    assert read(f"{CALL}{CALL}", cuts, parallel=False) == [F]


@given(st.text(alphabet='<tool_cal>/{}" x', max_size=60), st.lists(st.integers(0, 100)))
def test_what_is_no_call_stays_text(text: str, cuts: list[int]) -> None:
    assert read(text, cuts) == ([text] if text else [])


def test_a_call_that_is_no_json_is_shown_as_it_is() -> None:
    broken = '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'
    assert read(broken, []) == [broken]


def test_forced_calls_are_whole_or_text() -> None:
    reader = ForcedCalls()
    assert reader.push('[{"name": "f", "argum') == []
    reader.push('ents": {"x": 1}}]')
    [call] = reader.finish()
    assert isinstance(call, Call)
    assert (call.name, call.arguments) == ("f", '{"x": 1}')
    cut = ForcedCalls()
    cut.push('[{"name": ')
    assert cut.finish() == ['[{"name": ']
    named = NamedCall("g")
    named.push("{}")
    [call] = named.finish()
    assert (call.name, call.arguments) == ("g", "{}")
