"""Beams in the engine: whatever befalls them, their outputs are those of a search left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.engine.engine import Engine
from looseleaf.engine.llm import LLM
from looseleaf.engine.outputs import RequestOutput
from looseleaf.engine.sampling_errors import InvalidParameter
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.errors import InvalidRequest, RequestTooLarge
from looseleaf.memory import ALLOCATORS
from tiny_model import tiny_engine, tiny_model, write_tiny_folder

MODEL = tiny_model()


def drain(engine: Engine) -> dict[str, RequestOutput]:
    finished = {}
    while engine.has_unfinished():
        for delta in engine.step():
            if delta.request_output is not None:
                finished[delta.request_id] = delta.request_output
        engine.memory.audit()
    assert engine.memory.num_free_blocks == engine.memory.num_blocks
    assert not engine.scheduler.has_unfinished()
    return finished


def run(engine: Engine, requests: list[tuple[list[int], SamplingParams]]) -> list[RequestOutput]:
    ids = [engine.add_request(prompt, params) for prompt, params in requests]
    finished = drain(engine)
    return [finished[request_id] for request_id in ids]


def results(outputs: list[RequestOutput]) -> list[list[tuple[Any, ...]]]:
    return [[(sample.token_ids, sample.text, sample.finish_reason) for sample in out.outputs] for out in outputs]


def beams(width: int, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"beam_width": width, "n": width, "max_tokens": 12, "ignore_eos": True} | changes)


prompts = st.lists(st.integers(0, 255), min_size=1, max_size=20)
searches = st.builds(
    beams,
    st.integers(1, 5),
    max_tokens=st.integers(1, 16),
    stop_token_ids=st.lists(st.integers(0, 255), max_size=60),
    length_penalty=st.sampled_from([1.0, 0.0, -1.0]),
    early_stopping=st.sampled_from([False, True, "never"]),
)
samples = st.builds(
    SamplingParams, n=st.integers(1, 2), seed=st.integers(0, 9), max_tokens=st.integers(1, 20), ignore_eos=st.just(True)
)


@given(
    requests=st.lists(st.tuples(prompts, searches | searches | samples), min_size=1, max_size=6),
    block_size=st.sampled_from([1, 3, 4, 16]),
    allocator=st.sampled_from(ALLOCATORS),
    budget=st.integers(5, 40),
    enable_prefix_caching=st.booleans(),
    spare=st.integers(0, 12),
)
@settings(max_examples=40, deadline=None)
def test_outputs_do_not_depend_on_company_memory_chunks_or_preemption(
    requests: list[tuple[list[int], SamplingParams]],
    block_size: int,
    allocator: str,
    budget: int,
    enable_prefix_caching: bool,
    spare: int,
) -> None:
    longest = max(len(prompt) + (params.max_tokens or 0) for prompt, params in requests)
    per_sequence = -(-longest // block_size)
    widest = max(params.num_samples for _, params in requests)
    num_blocks = per_sequence * widest + spare
    if allocator == "contiguous-pow2":
        num_blocks *= 4
    elif allocator == "contiguous-max":
        num_blocks += per_sequence
    crowded = tiny_engine(
        MODEL,
        num_blocks=num_blocks,
        block_size=block_size,
        allocator=allocator,
        max_model_len=longest,
        max_num_batched_tokens=budget,
        enable_prefix_caching=enable_prefix_caching,
        watermark=0.0,
    )
    together = run(crowded, requests)
    alone = [run(tiny_engine(MODEL), [request])[0] for request in requests]
    assert results(together) == results(alone)


def test_a_full_pool_preempts_beams_as_a_group_and_nobody_notices() -> None:
    requests = [([i, 7, 9] * 3, beams(3, max_tokens=20)) for i in range(5)]
    tight = tiny_engine(MODEL, num_blocks=30, max_num_seqs=16)
    assert results(run(tight, requests)) == results(run(tiny_engine(MODEL, max_num_seqs=16), requests))
    assert tight.scheduler.num_preemptions >= 6
    assert tight.scheduler.num_preemptions % 3 == 0


def test_beams_share_their_prompt_and_give_back_what_they_drop() -> None:
    engine = tiny_engine(MODEL, num_blocks=64)
    engine.add_request(list(range(30)), beams(4))
    held = []
    while engine.has_unfinished():
        engine.step()
        held.append(engine.memory.num_blocks - engine.memory.num_free_blocks)
    assert held[0] == 8  # 30 tokens in blocks of 4, once for all
    assert held[1] <= 11  # and at most three copies of the last one
    assert max(held) <= 7 + 4 * 4  # never more than what each may have of its own
    assert held[-1] == 0


def test_outputs_are_the_best_first_and_come_at_once() -> None:
    engine = tiny_engine(MODEL)
    request_id = engine.add_request([5, 6, 7], beams(4, n=3))
    deltas = []
    while engine.has_unfinished():
        deltas += engine.step()
    assert [delta.index for delta in deltas] == [0, 1, 2]
    assert {delta.request_id for delta in deltas} == {request_id}
    assert [delta.request_output is None for delta in deltas] == [True, True, False]
    output = deltas[-1].request_output
    assert output is not None
    assert output.finished
    scores = [sample.score for sample in output.outputs]
    assert scores == sorted(scores, reverse=True)
    for delta, sample in zip(deltas, output.outputs, strict=True):
        assert (delta.text, delta.token_ids, delta.finish_reason) == (sample.text, sample.token_ids, "length")
        assert sample.text == engine.tokenizer.decode(sample.token_ids)
        assert sample.cumulative_logprob == pytest.approx(sample.score * len(sample.token_ids))
    assert output.metrics is not None
    assert output.metrics.first_token_time is not None


def test_the_end_token_ends_an_output_and_names_its_reason() -> None:
    free = run(tiny_engine(MODEL), [([5, 6, 7], beams(3))])[0]
    stop = free.outputs[0].token_ids[4]
    output = run(tiny_engine(MODEL), [([5, 6, 7], beams(3, stop_token_ids=[stop], early_stopping=True))])[0]
    ended = [sample for sample in output.outputs if sample.token_ids[-1] == stop]
    assert ended
    assert {(sample.finish_reason, sample.stop_reason) for sample in ended} == {("stop", stop)}
    kept = beams(3, stop_token_ids=[stop], early_stopping=True, include_stop_str_in_output=True)
    texts = [sample.text for sample in run(tiny_engine(MODEL), [([5, 6, 7], kept)])[0].outputs]
    assert all(len(long) >= len(short.text) for long, short in zip(texts, output.outputs, strict=True))


def test_prompt_logprobs_come_with_beams_too() -> None:
    outputs = [
        run(tiny_engine(MODEL, num_blocks=30), [([1, 2, 3, 4, 5], params)])[0]
        for params in (beams(3, prompt_logprobs=1), SamplingParams(prompt_logprobs=1, max_tokens=1))
    ]
    assert outputs[0].prompt_logprobs == outputs[1].prompt_logprobs


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_an_abort_shows_the_best_so_far_and_frees_everything(steps: int) -> None:
    engine = tiny_engine(MODEL)
    request_id = engine.add_request([5, 6, 7], beams(4, n=2))
    other = engine.add_request([1, 2], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    for _ in range(steps):
        engine.step()
    deltas = engine.abort(request_id)
    output = deltas[-1].request_output
    assert output is not None
    assert [sample.finish_reason for sample in output.outputs] == ["abort"] * 2
    assert [len(sample.token_ids) for sample in output.outputs] == [steps] * 2
    assert set(drain(engine)) == {other}


def test_logits_that_are_no_numbers_end_the_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(MODEL)
    failing = engine.add_request([5, 6, 7], beams(2))
    other = engine.add_request([1, 2], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    engine.step()
    logits = engine.model.logits

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        rows = logits(hidden)
        rows[1, 3] = torch.nan
        return rows

    monkeypatch.setattr(engine.model, "logits", broken)
    (delta, *_) = [delta for delta in engine.step() if delta.request_id == failing]
    assert delta.finish_reason == "error"
    monkeypatch.undo()
    assert set(drain(engine)) == {other}


def test_a_model_that_fails_takes_its_beams_down_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(MODEL)
    request_id = engine.add_request([5, 6, 7], beams(2))
    engine.step()
    monkeypatch.setattr(engine.model, "forward", lambda *_: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(MemoryError):
        engine.step()
    monkeypatch.undo()
    (output,) = [delta.request_output for delta in engine.step() if delta.request_output is not None]
    assert (output.request_id, output.outputs[0].finish_reason) == (request_id, "abort")
    assert engine.memory.num_free_blocks == engine.memory.num_blocks


def test_what_could_never_run_is_refused_with_the_numbers() -> None:
    engine = tiny_engine(MODEL, num_blocks=12, max_num_batched_tokens=4)
    with pytest.raises(RequestTooLarge, match="of 3 such beams is 21"):
        engine.add_request([1] * 9, beams(3, max_tokens=13))
    with pytest.raises(RequestTooLarge, match="5 beams, which advance together"):
        engine.add_request([1] * 9, beams(5))
    with pytest.raises(InvalidParameter, match="at most 31 for a vocabulary of 257"):
        engine.add_request([1], beams(32, stop_token_ids=range(7)))
    shrunk = SamplingParams(beam_width=3, ignore_eos=True)  # the default number of tokens gives way
    assert len(run(engine, [([1] * 9, shrunk)])[0].outputs[0].token_ids) == 12


def test_beams_cannot_be_streamed(tmp_path: Any) -> None:
    llm = LLM(write_tiny_folder(tmp_path / "tiny"), kv_cache_memory="1MiB", dtype="float32")
    with pytest.raises(InvalidRequest, match="not known before the end"):
        llm.stream("hello", {"beam_width": 2})
    output = llm.generate("hello", {"beam_width": 2, "n": 2, "max_tokens": 3})[0]
    assert len(output.outputs) == 2
