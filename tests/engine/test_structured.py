"""Whatever a random model would rather say, a structured output is what was asked for, alone and in company."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, normalizers
from tokenizers.models import BPE

from looseleaf.engine.engine import Engine
from looseleaf.engine.grammar_compiler import GrammarCompiler
from looseleaf.engine.outputs import RequestOutput
from looseleaf.engine.sampling_errors import InvalidGrammar, InvalidParameter
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.engine.structured import MAX_DEPTH, MAX_SIZE
from looseleaf.kernels import native
from looseleaf.models.interface import Decoder
from looseleaf.models.native_decoder import NativeCausalLM
from looseleaf.models.tokenizer import Tokenizer
from tiny_model import EOS, tiny_engine, tiny_model, tiny_tokenizer

MODEL: Decoder = NativeCausalLM.from_reference(tiny_model()) if native.is_chosen() else tiny_model()
A, B, C = tiny_tokenizer().encode("abc")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["ä", "日本", "🙂", 'say "hi"']}, "minItems": 1, "maxItems": 2},
        "near": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["name", "age", "tags", "near"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"],
                        "additionalProperties": False}},
}  # fmt: skip

native_only = pytest.mark.skipif(not native.is_chosen(), reason="the native kernels promise it; they are not there")


def run(engine: Engine, *requests: tuple[str, dict[str, Any]]) -> list[RequestOutput]:
    """The results, in the order of the requests."""
    for number, (prompt, params) in enumerate(requests):
        engine.add_request(prompt, params, request_id=str(number))
    results: dict[str, RequestOutput] = {}
    while engine.has_unfinished():
        results |= {d.request_id: d.request_output for d in engine.step() if d.request_output is not None}
    return [results[str(number)] for number in range(len(requests))]


def answers(structured: dict[str, Any], **params: Any) -> list[str]:
    params = {"max_tokens": 400, "n": 4, "seed": 1} | params
    (result,) = run(tiny_engine(MODEL, max_model_len=500), ("ask", {"structured": structured} | params))
    assert {output.finish_reason for output in result.outputs} == {"stop"}
    return [output.text for output in result.outputs]


def valid(text: str, schema: dict[str, Any]) -> Any:
    value = json.loads(text)
    jsonschema.Draft202012Validator(schema).validate(value)
    return value


@pytest.mark.parametrize("temperature", [0, 1, 100])
def test_a_schema_is_kept(temperature: float) -> None:
    for text in answers({"json_schema": PERSON}, temperature=temperature):
        person = valid(text, PERSON)
        assert text == json.dumps(person, ensure_ascii=False) or "\\" in text or "." in text


scalars = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(lambda most: {"type": "string", "maxLength": most}, st.integers(0, 3)),
    st.builds(
        lambda a, b: {"type": "integer", "minimum": min(a, b), "maximum": max(a, b)}, *[st.integers(-50, 50)] * 2
    ),
    st.builds(
        lambda values: {"enum": values}, st.lists(st.text(min_size=1, max_size=3) | st.integers(0, 9), min_size=1)
    ),
    st.just({"type": "string", "pattern": "^[a-c]{2,3}$"}),
)


def _containers(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def array(items: dict[str, Any], least: int, more: int) -> dict[str, Any]:
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + more}

    def record(properties: dict[str, dict[str, Any]], needed: int) -> dict[str, Any]:
        required = list(properties)[:needed]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    return st.one_of(
        st.builds(array, inner, st.integers(0, 1), st.integers(0, 2)),
        st.builds(record, st.dictionaries(st.text(max_size=3), inner, max_size=2), st.integers(0, 2)),
        st.builds(lambda one, other: {"anyOf": [one, other]}, inner, inner),
    )


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.recursive(scalars, _containers, max_leaves=4), st.integers(0, 2**32))
def test_any_schema_is_kept(schema: dict[str, Any], seed: int) -> None:
    for text in answers({"json_schema": schema}, seed=seed, n=2):
        valid(text, schema)


def test_a_schema_may_be_text() -> None:
    assert answers({"json_schema": json.dumps(PERSON)}) == answers({"json_schema": PERSON})


def test_any_object() -> None:
    engine = tiny_engine(MODEL, max_model_len=500)
    results = run(
        engine, *[("ask", {"structured": {"json_object": True}, "seed": s, "max_tokens": 300}) for s in range(8)]
    )
    ended = [r.outputs[0].text for r in results if r.outputs[0].finish_reason == "stop"]
    assert ended
    assert all(isinstance(json.loads(text), dict) for text in ended)


@pytest.mark.parametrize("pattern", ["[0-9]{3}-[a-f]+x{2}", "(ja|nein)!", "é{2,4}", "a|bc|"])
def test_a_regular_expression_matches_the_whole(pattern: str) -> None:
    assert all(re.fullmatch(pattern, text) for text in answers({"regex": pattern}))


def test_a_choice_is_taken_literally() -> None:
    choices = ["a.b*", "a.b", "[x]\n", '"q"\\', "日本", "#&~ -/", "a|b"]
    seen = {text for seed in range(6) for text in answers({"choice": choices}, n=8, seed=seed)}
    assert seen <= set(choices)
    assert len(seen) >= 4


def test_a_context_free_grammar() -> None:
    nested = 'start: "(" start ")" | /[ab]/'
    for text in answers({"grammar": nested}, n=8):
        left = len(text) // 2
        assert re.fullmatch(r"[ab]", text[left])
        assert (text[:left], text[left + 1 :]) == ("(" * left, ")" * left)


def test_an_end_token_comes_where_the_output_is_complete_and_only_there() -> None:
    engine = tiny_engine(MODEL)
    biased = {"structured": {"regex": "a{3,9}"}, "logit_bias": {256: 100}, "temperature": 0}
    eager, forbidden = run(engine, ("ask", biased), ("ask", biased | {"logit_bias": {256: -100}}))
    assert eager.outputs[0].token_ids == [A, A, A, 256]
    assert forbidden.outputs[0].token_ids == [A] * 9
    assert {r.outputs[0].text for r in (eager, forbidden)} == {"aaa", "a" * 9}
    assert {r.outputs[0].finish_reason for r in (eager, forbidden)} == {"stop"}


def test_the_name_of_a_special_token_is_text() -> None:
    (text,) = answers({"choice": [EOS]}, n=1)
    assert text == EOS


def test_a_stop_token_ends_a_complete_output() -> None:
    params = {"structured": {"regex": "a{2,5}"}, "stop_token_ids": [B], "logit_bias": {B: 100}, "temperature": 0}
    (result,) = run(tiny_engine(MODEL), ("ask", params))
    assert (result.outputs[0].text, result.outputs[0].stop_reason) == ("aa", B)


def test_the_length_limit_cuts() -> None:
    (result,) = run(tiny_engine(MODEL), ("ask", {"structured": {"regex": "a{50}"}, "max_tokens": 7}))
    assert (result.outputs[0].text, result.outputs[0].finish_reason) == ("a" * 7, "length")


@native_only
def test_the_same_tokens_alone_in_company_and_after_preemptions() -> None:
    requests = [
        ("one", {"structured": {"json_schema": PERSON}, "seed": 5, "n": 2, "max_tokens": 90, "logprobs": 1}),
        ("two", {"structured": {"regex": "[a-z]{60}"}, "seed": 6, "max_tokens": 90, "temperature": 0}),
        ("three", {"seed": 7, "max_tokens": 40}),
        ("four", {"structured": {"json_schema": PERSON}, "seed": 8, "best_of": 3, "max_tokens": 90, "top_k": 40}),
        ("five", {"structured": {"choice": ["x" * 30, "y" * 31]}, "seed": 9, "frequency_penalty": 1, "max_tokens": 90}),
    ]
    alone = [run(tiny_engine(MODEL), request)[0] for request in requests]
    tight = tiny_engine(MODEL, num_blocks=40)
    together = run(tight, *requests)
    assert tight.scheduler.num_preemptions > 0
    assert [r.outputs for r in together] == [r.outputs for r in alone]


@native_only
@pytest.mark.parametrize("cut", [1, 20, 39])
def test_it_goes_on_from_known_tokens(cut: int) -> None:
    params = {"structured": {"json_schema": PERSON}, "seed": 5, "n": 2, "max_tokens": 200}
    (whole,) = run(tiny_engine(MODEL, max_model_len=300), ("ask", params))
    assert min(len(output.token_ids) for output in whole.outputs) > cut
    engine = tiny_engine(MODEL, max_model_len=300)
    engine.add_request("ask", params, known=[output.token_ids[:cut] for output in whole.outputs])
    while engine.has_unfinished():
        result = next((d.request_output for d in engine.step() if d.request_output is not None), None)
    assert result is not None
    assert result.outputs == whole.outputs


@native_only
def test_rows_without_structure_are_untouched() -> None:
    plain = {"seed": 3, "max_tokens": 20}
    (alone,) = run(tiny_engine(MODEL), ("plain", plain))
    beside, _ = run(
        tiny_engine(MODEL), ("plain", plain), ("ask", {"structured": {"json_object": True}, "max_tokens": 20})
    )
    assert beside.outputs == alone.outputs


@pytest.mark.parametrize(
    "structured",
    [
        {"json_schema": {"type": "nonsense"}},
        {"json_schema": {"not": {"type": "string"}}},
        {"json_schema": {"type": "array", "uniqueItems": True}},
        {"json_schema": {"type": "object", "x-guidance": {"lenient": True}, "dependentRequired": {"a": ["b"]}}},
        {"json_schema": {"$ref": "#/$defs/absent"}},
        {"json_schema": {"$ref": "http://localhost/schema.json"}},
        {"json_schema": False},
        {"json_schema": {"type": "integer", "minimum": 5, "maximum": 3}},
        {"json_schema": {"allOf": [{"type": "string", "pattern": f".*{c}.{{20}}"} for c in "abc"]}},
        {"json_schema": '{"type": '},
        {"json_schema": [1]},
        {"json_schema": {"type": {1, 2}}},
        {"json_schema": {"const": float("nan")}},
        {"json_schema": {"const": "\ud800"}},
        {"json_schema": {"enum": ["x" * MAX_SIZE]}},
        {"json_schema": "[" * 100_000},
        {"regex": "(unclosed"},
        {"regex": "(?=ahead)a"},
        {"regex": "x(((a{100}){100}){100}){100}"},
        {"json_schema": {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{n}}}"} for n in range(20, 40)]}},
        {"regex": "[a-z&&0-9]"},
        {"regex": ""},
        {"regex": 5},
        {"regex": "x" * (MAX_SIZE + 1)},
        {"choice": []},
        {"choice": "ab"},
        {"choice": ["a", ""]},
        {"choice": ["a", 1]},
        {"grammar": "start: missing"},
        {"grammar": "no colon"},
        {"json_object": False},
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_cannot_be_followed_is_refused_before_anything_is_queued(structured: Any) -> None:
    engine = tiny_engine(MODEL)
    with pytest.raises(InvalidGrammar) as caught:
        engine.add_request("ask", {"structured": structured})
    assert caught.value.name == "structured"
    assert len(str(caught.value)) < 800
    assert not engine.has_unfinished()


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_depth_is_bounded() -> None:
    SamplingParams(structured={"json_schema": _deep(MAX_DEPTH // 2)})
    for levels in (MAX_DEPTH, 100_000):
        with pytest.raises(InvalidGrammar, match="levels deep"):
            SamplingParams(structured={"json_schema": _deep(levels)})


@pytest.mark.parametrize("other", [{"beam_width": 2}, {"ignore_eos": True}, {"min_tokens": 3}], ids=str)
def test_what_contradicts_it_is_refused_by_name(other: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match="structured"):
        SamplingParams(structured={"json_object": True}, **other)


def test_parameters_survive_a_round_trip() -> None:
    params = SamplingParams(structured={"json_schema": json.dumps(PERSON)})
    assert SamplingParams(structured=params.structured) == params
    assert params.structured == {"json_schema": PERSON}


def few_states(monkeypatch: pytest.MonkeyPatch) -> None:
    from llguidance import LLParserLimits

    limits = LLParserLimits(max_lexer_states=60, precompute_large_lexemes=False)
    monkeypatch.setattr("looseleaf.engine.grammar_compiler.parser_limits", lambda: limits)


def test_a_bound_that_is_exceeded_in_the_middle_fails_that_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    few_states(monkeypatch)
    engine = tiny_engine(MODEL)
    bounded = {"structured": {"regex": ".*a.{200}"}, "max_tokens": 80, "logit_bias": {A: 100}, "temperature": 0}
    failed, plain = run(engine, ("a", bounded), ("b", {"max_tokens": 9}))
    assert (failed.outputs[0].finish_reason, plain.outputs[0].finish_reason) == ("error", "length")


def test_what_one_output_uses_up_is_not_missing_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    few_states(monkeypatch)
    start = GrammarCompiler(tiny_tokenizer(), 257, (256,)).start({"regex": ".*a.{200}"})
    spoilt = start.copy()
    for token in [A] * 80:
        if not spoilt.allowed().any():
            break
        spoilt.advance(token)
    assert spoilt.error
    fresh = start.copy()
    assert not fresh.advance(B)
    assert fresh.allowed()[[A, B, C]].all()


def test_without_an_end_of_sequence_token_there_is_no_end() -> None:
    backend = tokenizers.Tokenizer.from_str(tiny_tokenizer()._backend.to_str())
    engine = tiny_engine(tiny_model(eos_token_ids=()), tokenizer=Tokenizer(backend))
    with pytest.raises(InvalidGrammar, match="end-of-sequence"):
        engine.add_request("ask", {"structured": {"regex": "a"}})


def test_grammars_are_compiled_once() -> None:
    compiler = GrammarCompiler(tiny_tokenizer(), 257, (256,))
    first = compiler.start({"regex": "a+"})
    assert compiler.start({"regex": "a+"}) is first
    for number in range(100):
        compiler.start({"regex": f"a{{{number + 1}}}"})
    assert compiler.start({"regex": "a+"}) is not first


def test_copies_stand_in_different_places() -> None:
    compiler = GrammarCompiler(tiny_tokenizer(), 300, (256,))
    start = compiler.start({"regex": "ab?c"})
    one, two = start.copy(), start.copy()
    assert not one.advance(A)
    assert np.flatnonzero(one.allowed()).tolist() == [B, C]
    assert np.flatnonzero(two.allowed()).tolist() == [A]
    assert one.advance(C)
    assert two.advance(B) is False
    assert two.error
    assert not two.allowed().any()
    logits = np.zeros(300, np.float32)
    one.restrict(logits, np.array([256]))
    assert np.flatnonzero(np.isfinite(logits)).tolist() == [256]


def test_a_sentencepiece_vocabulary() -> None:
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a", "ab"]
    backend = tokenizers.Tokenizer(
        BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[("\u2581", "a"), ("a", "b")],
            unk_token="<unk>", byte_fallback=True)
    )  # fmt: skip
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = Tokenizer(backend, special_tokens={"eos_token": "</s>"})
    model = tiny_model(vocab_size=len(pieces), eos_token_ids=(1,))
    engine = tiny_engine(model, tokenizer=tokenizer)
    requests = [("ab", {"structured": {"regex": "ab( a|é){3}b?"}, "seed": seed}) for seed in range(4)]
    for result in run(engine, *requests):
        assert re.fullmatch("ab( a|é){3}b?", result.outputs[0].text)
