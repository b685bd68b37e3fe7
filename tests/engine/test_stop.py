"""When an output ends: which end wins, what text is shown, and what is held back on the way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.engine.stop import Finish, StopChecker

EOS = 0


class Letters:
    """Token 1 is "a", 2 is "b", …; 100 and up hold the first byte of something, shown only when complete."""

    def __init__(self) -> None:
        self.held = 0

    def push(self, token_ids: Sequence[int], /) -> str:
        self.held += sum(token_id >= 100 for token_id in token_ids)
        return "".join("<end>" if t == EOS else chr(ord("a") + t - 1) for t in token_ids if t < 100)

    def finish(self) -> str:
        held, self.held = self.held, 0
        return "\ufffd" * held


def checker(**params: object) -> StopChecker:
    sampling = SamplingParams.parse({"max_tokens": 100, **params})
    assert sampling.max_tokens is not None
    return StopChecker(sampling, Letters(), eos_token_ids=[EOS], max_tokens=sampling.max_tokens)


def run(stop_checker: StopChecker, token_ids: Sequence[int]) -> tuple[str, Finish | None, int]:
    text = ""
    for token_id in token_ids:
        text += stop_checker.advance(token_id)
        if stop_checker.finish:
            break
    return text, stop_checker.finish, stop_checker.num_tokens


A, B, C, D = 1, 2, 3, 4


@pytest.mark.parametrize(
    ("params", "tokens", "text", "finish", "used"),
    [
        ({}, [A, B, EOS, C], "ab", Finish("stop"), 3),
        ({"include_stop_str_in_output": True}, [A, EOS], "a<end>", Finish("stop"), 2),
        ({"include_stop_str_in_output": True, "stop": "<e"}, [A, EOS], "a<end>", Finish("stop"), 2),
        ({"ignore_eos": True, "max_tokens": 3}, [A, EOS, B, C], "a<end>b", Finish("length"), 3),
        ({"ignore_eos": True, "stop_token_ids": [EOS]}, [A, EOS], "a", Finish("stop", EOS), 2),
        ({"stop_token_ids": [B]}, [A, B], "a", Finish("stop", B), 2),
        ({"stop_token_ids": [B], "include_stop_str_in_output": True}, [A, B], "ab", Finish("stop", B), 2),
        ({"stop_token_ids": [EOS]}, [EOS], "", Finish("stop"), 1),
        ({"stop": "bc"}, [A, B, C, D], "a", Finish("stop", "bc"), 3),
        ({"stop": "bc", "include_stop_str_in_output": True}, [A, B, C, D], "abc", Finish("stop", "bc"), 3),
        ({"stop": "bcd", "max_tokens": 3}, [A, B, C], "abc", Finish("length"), 3),
        ({"stop": "bc", "max_tokens": 3}, [A, B, C], "a", Finish("stop", "bc"), 3),
        ({"stop": "bcd"}, [A, B, C, EOS], "abc", Finish("stop"), 4),
        ({"stop": "b", "stop_token_ids": [B], "include_stop_str_in_output": True}, [B], "b", Finish("stop", B), 1),
        ({"max_tokens": 1}, [A], "a", Finish("length"), 1),
        ({"max_tokens": 2}, [A, 100], "a\ufffd", Finish("length"), 2),
        ({}, [100, EOS], "\ufffd", Finish("stop"), 2),
        ({"stop": "a\ufffd", "max_tokens": 2}, [A, 100], "", Finish("stop", "a\ufffd"), 2),
        ({"min_tokens": 2}, [EOS, A, EOS], "<end>a", Finish("stop"), 3),
        ({"min_tokens": 2, "stop_token_ids": [A]}, [A, A, A], "aa", Finish("stop", A), 3),
        ({"min_tokens": 2, "stop": "ab"}, [A, B, A, B], "ab", Finish("stop", "ab"), 4),
        ({"min_tokens": 3, "stop": "ab", "max_tokens": 3}, [C, A, B], "cab", Finish("length"), 3),
        ({"stop": ["x", "y"]}, [A, B], "ab", None, 2),
    ],
)
def test_ends(params: dict[str, object], tokens: list[int], text: str, finish: Finish | None, used: int) -> None:
    assert run(checker(**params), tokens) == (text, finish, used)


@given(
    st.lists(st.integers(0, 3), max_size=12),
    st.lists(st.sampled_from(["a", "ab", "bca", "cc"]), max_size=2),
    st.integers(0, 6),
    st.integers(1, 10),
)
def test_limits_and_minimum_hold_for_any_output(tokens: list[int], stop: list[str], minimum: int, limit: int) -> None:
    minimum = min(minimum, limit)
    stop_checker = checker(max_tokens=limit, stop=stop, min_tokens=minimum)
    text, finish, used = run(stop_checker, tokens)
    assert used <= limit
    assert used < limit or finish is not None
    if finish is not None and finish.reason == "stop":
        assert used > minimum
    whole = "".join(Letters().push([token]) for token in tokens[:used])
    assert whole.startswith(text)


def test_an_end_from_outside_releases_what_was_held_and_is_final() -> None:
    stop_checker = checker(stop="bcd")
    assert run(stop_checker, [A, B, C])[0] == "a"
    assert stop_checker.end(Finish("abort")) == "bc"
    assert stop_checker.end(Finish("error", "broken")) == ""
    assert stop_checker.finish == Finish("abort")


def test_an_end_from_outside_does_not_find_a_stop_string_in_the_rest() -> None:
    stop_checker = checker(stop="a\ufffd")
    assert run(stop_checker, [A, 100])[0] == ""
    assert stop_checker.end(Finish("abort")) == "a\ufffd"
    assert stop_checker.finish == Finish("abort")


def test_an_end_from_outside_does_not_undo_one_from_inside() -> None:
    stop_checker = checker()
    run(stop_checker, [A, EOS])
    assert stop_checker.end(Finish("abort")) == ""
    assert stop_checker.finish == Finish("stop")
