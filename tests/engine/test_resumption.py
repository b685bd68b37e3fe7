"""A request that goes on from known tokens is the one that never stopped, bit by bit."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exactness import logprob_bits
from looseleaf.engine.engine import Engine
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.errors import InvalidRequest
from looseleaf.kernels import native
from looseleaf.memory import ALLOCATORS
from looseleaf.models.native_decoder import NativeCausalLM
from tiny_model import tiny_engine, tiny_model

MODEL = NativeCausalLM.from_reference(tiny_model()) if native.is_chosen() else tiny_model()
PROMPT = [5, 6, 7, 8, 9]


@dataclass
class Seen:
    """What a front knows of one sample."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[Any] = field(default_factory=list)
    finish: tuple[Any, Any] | None = None


def follow(engine: Engine, seen: dict[int, Seen], request_id: str = "it", *, steps: int | None = None) -> None:
    while engine.is_running(request_id) and steps != 0:
        for delta in engine.step():
            if delta.request_id == request_id:
                sample = seen[delta.index]
                assert sample.finish is None
                sample.token_ids += delta.token_ids
                sample.text += delta.text
                sample.logprobs += [logprob_bits(each) for each in delta.logprobs or ()]
                if delta.finish_reason is not None:
                    sample.finish = (delta.finish_reason, delta.stop_reason)
        steps = None if steps is None else steps - 1
        engine.memory.audit()


PARAMS = st.fixed_dictionaries(
    {
        "n": st.integers(1, 3),
        "max_tokens": st.integers(1, 14),
        "min_tokens": st.integers(0, 3),
        "temperature": st.sampled_from([0, 1.0, 1.5]),
        "top_k": st.sampled_from([0, 20]),
        "repetition_penalty": st.sampled_from([1.0, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.5]),
        "logprobs": st.sampled_from([None, 2]),
        "stop_token_ids": st.lists(st.integers(0, 256), max_size=30, unique=True),
        "detokenize": st.booleans(),
        "seed": st.integers(0, 2**64 - 1),
    }
)


@given(
    params=PARAMS,
    cut=st.integers(1, 14),
    again=st.integers(1, 14),
    set_up=st.fixed_dictionaries(
        {
            "num_blocks": st.sampled_from([20, 64]),
            "enable_prefix_caching": st.booleans(),
            "allocator": st.sampled_from(ALLOCATORS),
            "max_num_batched_tokens": st.sampled_from([3, 64]),
        }
    ),
    company=st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=9), max_size=2),
)
@settings(max_examples=80)
def test_it_is_the_run_that_never_stopped(
    params: dict[str, Any], cut: int, again: int, set_up: dict[str, Any], company: list[list[int]]
) -> None:
    params["min_tokens"] = min(params["min_tokens"], params["max_tokens"])
    chosen = SamplingParams(**params)
    undisturbed: dict[int, Seen] = defaultdict(Seen)
    engine = tiny_engine(MODEL)
    engine.add_request(PROMPT, chosen, request_id="it")
    follow(engine, undisturbed)

    seen: dict[int, Seen] = defaultdict(Seen)
    engine = tiny_engine(MODEL)
    engine.add_request(PROMPT, chosen, request_id="it")
    follow(engine, seen, steps=cut)
    for steps in (again, None):
        if all(sample.finish for sample in seen.values()):
            break
        engine = tiny_engine(MODEL, **set_up)
        for prompt in company:
            engine.add_request(prompt, {"max_tokens": 9})
        engine.add_request(
            PROMPT,
            chosen,
            request_id="it",
            known=[seen[index].token_ids for index in range(chosen.n)],
            ended=[index for index, sample in seen.items() if sample.finish is not None],
        )
        if steps is None:
            break
        follow(engine, seen, steps=steps)
    follow(engine, seen)
    for index, sample in undisturbed.items():
        assert seen[index].token_ids == sample.token_ids
        assert seen[index].finish == sample.finish
        if native.is_chosen():
            assert seen[index].logprobs == sample.logprobs
        assert seen[index].text == sample.text
    while engine.has_unfinished():
        engine.step()
    assert engine.memory.num_free_blocks == engine.memory.num_blocks


def test_where_a_request_may_go_on_from() -> None:
    engine = tiny_engine(MODEL)
    greedy = {"temperature": 0, "max_tokens": 4}
    for params, known, ended, what in [
        (greedy, [[1, 2, 3, 4]], (), "has 4 tokens and may have 4"),
        (greedy, [[256, 1]], (), "beyond its end"),
        (greedy, [[256]], (), "has ended at its token 1"),
        (greedy, [[257]], (), "not one of the vocabulary"),
        (greedy, [[True]], (), "not one of the vocabulary"),
        (greedy, [[1], [2]], (), "known tokens of 2"),
        (greedy, [[1]], [0], "all its samples have ended"),
        (greedy, (), [0], "known tokens of 0"),
        (greedy | {"beam_width": 2}, [[1], [1]], (), "chosen at the end"),
        ({"best_of": 2}, [[1], [1]], (), "chosen at the end"),
        (greedy | {"prompt_logprobs": 0}, [[1]], (), "leave prompt_logprobs out"),
    ]:
        with pytest.raises(InvalidRequest, match=what):
            engine.add_request(PROMPT, params, known=known, ended=ended)
        assert not engine.has_unfinished()
        assert not engine._samples


def test_one_sample_ends_and_the_others_go_on() -> None:
    engine = tiny_engine(MODEL)
    params = {"n": 3, "max_tokens": 12, "ignore_eos": True, "seed": 1}
    whole: dict[int, Seen] = defaultdict(Seen)
    engine.add_request(PROMPT, params, request_id="it")
    follow(engine, whole)

    seen: dict[int, Seen] = defaultdict(Seen)
    engine.add_request(PROMPT, params, request_id="it")
    with pytest.raises(InvalidRequest):
        engine.end_sample("it", 0)
    follow(engine, seen, steps=4)
    for index in (0, 2):
        held = engine.memory.num_free_blocks
        (delta,) = engine.end_sample("it", index)
        assert (delta.index, delta.token_ids, delta.finish_reason) == (index, [], "abort")
        assert engine.memory.num_free_blocks > held
        assert engine.end_sample("it", index) == []
    assert engine.end_sample("it", 3) == engine.end_sample("other", 0) == []
    follow(engine, seen)
    assert seen[1] == whole[1]
    assert all(seen[index].token_ids == whole[index].token_ids[:4] for index in (0, 2))

    engine.add_request(PROMPT, params, request_id="it")
    engine.step()
    outputs = [delta.request_output for index in range(3) for delta in engine.end_sample("it", index)]
    assert outputs[:2] == [None, None]
    assert outputs[2] is not None
    assert not engine.has_unfinished()
    assert engine.memory.num_free_blocks == engine.memory.num_blocks


def test_a_sample_may_end_before_it_forks() -> None:
    engine = tiny_engine(MODEL, max_num_batched_tokens=2)
    engine.add_request(PROMPT, {"n": 2, "max_tokens": 5, "ignore_eos": True}, request_id="it")
    engine.step()
    (delta,) = engine.end_sample("it", 1)
    assert delta.finish_reason == "abort"
    seen: dict[int, Seen] = defaultdict(Seen)
    follow(engine, seen)
    assert [*seen] == [0]
    assert len(seen[0].token_ids) == 5


def test_no_text_where_none_is_wanted() -> None:
    engine = tiny_engine(MODEL)
    engine.add_request(PROMPT, {"max_tokens": 5, "logprobs": 1, "prompt_logprobs": 1, "detokenize": False})
    deltas = [delta for _ in range(5) for delta in engine.step()]
    assert [delta.text for delta in deltas] == [""] * 5
    output = deltas[-1].request_output
    assert output is not None
    assert output.outputs[0].text == ""
    for entries in (*(output.outputs[0].logprobs or ()), *(output.prompt_logprobs or ())[1:]):
        assert all(entry.decoded_token is None for entry in (entries or {}).values())
