"""Whatever the engine does with memory and batches, a request's tokens are those it gets alone."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.engine.engine import Engine
from looseleaf.engine.outputs import RequestOutput
from looseleaf.engine.running_request import SampleDelta
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.errors import ConfigurationError, InvalidRequest, RequestTooLarge
from looseleaf.kernels import native
from looseleaf.memory import ALLOCATORS
from looseleaf.models.native_decoder import NativeCausalLM
from tiny_model import full_logits, generate_alone, tiny_engine, tiny_model

MODEL = tiny_model()
EXACT = NativeCausalLM.from_reference(MODEL) if native.is_chosen() else MODEL
"""Whose drawn tokens do not depend on the last bits of a product that depend on the number of rows."""


def drain(engine: Engine, seen: list[SampleDelta] | None = None) -> dict[str, RequestOutput]:
    """Step to the end, auditing the memory after every step, and check that what was streamed adds up.

    `seen`: deltas of earlier steps.
    """
    deltas = list(seen or ())
    while engine.has_unfinished():
        deltas += engine.step()
        engine.memory.audit()
    assert engine.memory.num_free_blocks == engine.memory.num_blocks
    assert not engine.scheduler.has_unfinished()
    streams: dict[tuple[str, int], list[SampleDelta]] = defaultdict(list)
    for delta in deltas:
        streams[delta.request_id, delta.index].append(delta)
    finished = {delta.request_id: delta.request_output for delta in deltas if delta.request_output is not None}
    for request_id, output in finished.items():
        if sum(key[0] == request_id for key in streams) > len(output.outputs):
            continue  # best_of numbered the samples anew
        for sample in output.outputs:
            stream = streams[request_id, sample.index]
            assert "".join(delta.text for delta in stream) == sample.text
            assert [token for delta in stream for token in delta.token_ids] == sample.token_ids
            assert stream[-1].finish_reason == sample.finish_reason
    return finished


def run(engine: Engine, prompts: list[list[int]], params: list[SamplingParams]) -> list[RequestOutput]:
    ids = [engine.add_request(prompt, chosen) for prompt, chosen in zip(prompts, params, strict=True)]
    finished = drain(engine)
    return [finished[request_id] for request_id in ids]


def tokens(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[sample.token_ids for sample in output.outputs] for output in outputs]


token_lists = st.lists(st.integers(0, 255), min_size=1, max_size=30)
workloads = st.lists(st.tuples(token_lists, st.integers(1, 12)), min_size=1, max_size=7)
set_ups = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([1, 2, 4, 16]),
        "max_num_seqs": st.integers(1, 8),
        "max_num_batched_tokens": st.integers(1, 64),
        "allocator": st.sampled_from(ALLOCATORS),
    }
)


@given(workload=workloads, set_up=set_ups, spare=st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_greedy_tokens_are_those_of_the_model_alone(
    workload: list[tuple[list[int], int]], set_up: dict[str, Any], spare: int
) -> None:
    block_size = set_up["block_size"]
    longest = max(len(prompt) + count for prompt, count in workload)
    num_blocks = -(-longest // block_size) + spare
    if set_up["allocator"] == "contiguous-pow2":
        num_blocks *= 4
    engine = tiny_engine(MODEL, num_blocks=num_blocks, max_model_len=longest, **set_up)
    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for _, count in workload]
    outputs = run(engine, [prompt for prompt, _ in workload], params)
    assert tokens(outputs) == [[generate_alone(MODEL, prompt, count)] for prompt, count in workload]


@given(workload=workloads, set_up=set_ups, n=st.integers(1, 3), spare=st.integers(0, 10))
@settings(max_examples=40, deadline=None)
def test_sampled_tokens_do_not_depend_on_company_chunks_preemption_or_allocator(
    workload: list[tuple[list[int], int]], set_up: dict[str, Any], n: int, spare: int
) -> None:
    set_up["max_num_seqs"] = max(n, set_up["max_num_seqs"])
    longest = max(len(prompt) + count for prompt, count in workload)
    num_blocks = (-(-longest // set_up["block_size"]) + spare) * (4 if set_up["allocator"] != "paged" else 1)
    params = [
        SamplingParams(temperature=0.9, top_p=0.95, seed=i, n=n, max_tokens=count, frequency_penalty=0.3)
        for i, (_, count) in enumerate(workload)
    ]
    prompts = [prompt for prompt, _ in workload]
    together = run(tiny_engine(EXACT, num_blocks=num_blocks, max_model_len=longest, **set_up), prompts, params)
    alone = [run(tiny_engine(EXACT), [prompt], [chosen])[0] for prompt, chosen in zip(prompts, params, strict=True)]
    assert tokens(together) == tokens(alone)


def test_a_full_pool_preempts_and_nobody_notices() -> None:
    prompts = [[i, 7, 9] * 3 for i in range(8)]
    params = [SamplingParams(temperature=0.8, seed=i, max_tokens=24, ignore_eos=True, logprobs=1) for i in range(8)]
    tight = tiny_engine(EXACT, num_blocks=20)
    outputs = run(tight, prompts, params)
    assert tight.scheduler.num_preemptions > 3
    roomy = tiny_engine(EXACT)
    expected = run(roomy, prompts, params)
    assert roomy.scheduler.num_preemptions == 0
    assert tokens(outputs) == tokens(expected)
    assert [len(output.outputs[0].logprobs or ()) for output in outputs] == [24] * 8


def test_samples_share_the_prompt_and_copy_only_the_block_they_write() -> None:
    engine = tiny_engine(MODEL, num_blocks=64, block_size=4)
    engine.add_request(list(range(30)), SamplingParams(n=4, temperature=1, max_tokens=3, ignore_eos=True))
    seen = engine.step()
    assert engine.memory.num_blocks - engine.memory.num_free_blocks == 8  # 30 tokens in blocks of 4, once for all
    seen += engine.step()
    assert engine.memory.num_blocks - engine.memory.num_free_blocks == 11  # and three copies of the last block
    outputs = next(iter(drain(engine, seen).values())).outputs
    assert [sample.index for sample in outputs] == [0, 1, 2, 3]
    assert len({tuple(sample.token_ids) for sample in outputs}) > 1


def test_best_of_returns_the_most_likely_samples() -> None:
    prompt = [5, 6, 7]
    every = run(tiny_engine(MODEL), [prompt], [SamplingParams(n=6, seed=1, max_tokens=5, logprobs=0)])[0].outputs
    best = run(tiny_engine(MODEL), [prompt], [SamplingParams(n=2, best_of=6, seed=1, max_tokens=5)])[0].outputs
    ranked = sorted(every, key=lambda sample: -(sample.cumulative_logprob or 0))
    assert [sample.token_ids for sample in best] == [sample.token_ids for sample in ranked[:2]]
    assert [sample.index for sample in best] == [0, 1]


@pytest.mark.parametrize("budget", [1, 5, 64])
def test_logprobs_are_those_of_the_full_forward_pass(budget: int) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
    # A pool that preempts the second request while its prompt logprobs are on the way.
    engine = tiny_engine(MODEL, num_blocks=7, max_num_batched_tokens=budget)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=3, prompt_logprobs=2)
    for output in run(engine, [prompt, prompt], [params, params]):
        sample = output.outputs[0]
        rows = torch.log_softmax(full_logits(MODEL, prompt + sample.token_ids), -1)
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is None
        assert len(output.prompt_logprobs) == len(prompt)
        assert sample.logprobs is not None
        found = [*output.prompt_logprobs[1:], *sample.logprobs]
        for position, entry in enumerate(found):
            assert entry is not None
            target = (prompt + sample.token_ids)[position + 1]
            row = rows[position]
            assert entry[target].logprob == pytest.approx(row[target].item(), abs=1e-4)
            assert entry[target].rank == 1 + int((row > row[target]).sum())
            top = row.topk(2 if position + 1 < len(prompt) else 3)
            assert set(entry) == {*top.indices.tolist(), target}
        assert sample.cumulative_logprob == pytest.approx(
            sum(rows[len(prompt) - 1 + i, token].item() for i, token in enumerate(sample.token_ids)), abs=1e-3
        )


def test_the_end_token_stops_a_sample_and_ignore_eos_does_not() -> None:
    prompt = [1, 2, 3]
    end = generate_alone(MODEL, prompt, 4)[3]
    stopped, free = (
        run(tiny_engine(MODEL), [prompt], [SamplingParams(temperature=0, max_tokens=8, stop_token_ids=stop)])[0]
        for stop in ([end], [])
    )
    first = free.outputs[0].token_ids.index(end)
    assert stopped.outputs[0].token_ids == free.outputs[0].token_ids[: first + 1]
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", end)
    biased = SamplingParams(temperature=0, max_tokens=5, logit_bias={256: 100}, min_tokens=2)
    assert run(tiny_engine(MODEL), [prompt], [biased])[0].outputs[0].token_ids[2:] == [256]


@given(data=st.data(), aborts=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_an_abort_frees_blocks_at_once_and_leaves_the_others_alone(
    data: st.DataObject, aborts: list[tuple[int, int]]
) -> None:
    prompts = [data.draw(token_lists) for _ in range(6)]
    params = [SamplingParams(temperature=0.7, seed=i, n=1 + i % 3, max_tokens=10, ignore_eos=True) for i in range(6)]
    expected = tokens(run(tiny_engine(EXACT), prompts, params))
    engine = tiny_engine(EXACT, num_blocks=24, max_num_batched_tokens=16)
    ids = [engine.add_request(prompt, chosen) for prompt, chosen in zip(prompts, params, strict=True)]
    seen: list[SampleDelta] = []
    for step in range(13):
        for _, victim in (a for a in aborts if a[0] == step):
            running = {sequence.request.request_id for sequence in engine.scheduler.running}
            free = engine.memory.num_free_blocks
            deltas = engine.abort(ids[victim])
            seen += deltas
            engine.memory.audit()
            if ids[victim] in running:
                assert engine.memory.num_free_blocks > free
            if deltas:
                assert deltas[-1].request_output is not None
                assert "abort" in {sample.finish_reason for sample in deltas[-1].request_output.outputs}
        seen += engine.step()
    finished = drain(engine, seen)
    aborted = {ids[victim] for _, victim in aborts}
    for request_id, wanted in zip(ids, expected, strict=True):
        if request_id not in aborted:
            assert [sample.token_ids for sample in finished[request_id].outputs] == wanted


def test_a_failing_step_aborts_its_requests_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(MODEL, max_num_seqs=1)
    first, second = (engine.add_request([9, 8, 7], SamplingParams(temperature=0, max_tokens=4)) for _ in range(2))
    seen = engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "forward", lambda *_: (_ for _ in ()).throw(MemoryError("no room for activations")))
        with pytest.raises(MemoryError):
            engine.step()
    engine.memory.audit()
    finished = drain(engine, seen)
    assert finished[first].outputs[0].finish_reason == "abort"
    assert tokens([finished[second]]) == [[generate_alone(MODEL, [9, 8, 7], 4)]]


def test_all_requests_of_a_failing_step_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(MODEL)
    ids = [engine.add_request([x, 8, 7], SamplingParams(temperature=0, max_tokens=4)) for x in (1, 2)]
    seen = engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "logits", lambda _: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            engine.step()
    assert not engine.has_unfinished()
    late = engine.add_request([3], SamplingParams(temperature=0, max_tokens=2))
    finished = drain(engine, seen)
    assert set(finished) == {*ids, late}
    assert {finished[each].outputs[0].finish_reason for each in ids} == {"abort"}
    assert [len(finished[each].outputs[0].token_ids) for each in (*ids, late)] == [1, 1, 2]


@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("_seating", "take"),
        ("_model_step", "run"),
        ("", "_record"),
        ("_seating", "settle"),
        ("", "_close_if_finished"),
    ],
)
@pytest.mark.parametrize("failing_call", [1, 2])
def test_an_interrupt_anywhere_in_a_step_leaves_a_working_engine(
    monkeypatch: pytest.MonkeyPatch, part: str, method: str, failing_call: int
) -> None:
    engine = tiny_engine(MODEL, max_num_seqs=4)
    for x in range(3):
        engine.add_request([x, 8, 7], SamplingParams(temperature=0.5, n=1 + x % 2, max_tokens=1 + x))
    target: Any = getattr(engine, part) if part else engine
    original = getattr(target, method)
    calls = 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise KeyboardInterrupt
        return original(*arguments)

    monkeypatch.setattr(target, method, interrupted)
    with pytest.raises(KeyboardInterrupt):
        drain(engine)
    engine.memory.audit()
    engine.step()  # tells what the failed one dropped
    while engine.has_unfinished():
        engine.step()
    assert engine.memory.num_free_blocks == engine.memory.num_blocks
    # Every seat came back: as many sequences as ever run at once, and right.
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    for x in range(4):
        engine.add_request([x, 8, 7], params, request_id=f"after-{x}")
    finished = drain(engine)
    assert [finished[f"after-{x}"].outputs[0].token_ids for x in range(4)] == [
        generate_alone(MODEL, [x, 8, 7], 4) for x in range(4)
    ]


@pytest.mark.parametrize(("part", "method"), [("_seating", "leave"), ("", "_renew_prefix")])
def test_an_interrupt_harms_nobody_who_had_just_been_preempted(
    monkeypatch: pytest.MonkeyPatch, part: str, method: str
) -> None:
    engine = tiny_engine(MODEL, num_blocks=20)
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    prompts = {engine.add_request([i, 7, 9] * 3, params): [i, 7, 9] * 3 for i in range(6)}

    def interrupted(_: Any) -> None:
        patch.undo()
        raise KeyboardInterrupt

    deltas: list[SampleDelta] = []
    with monkeypatch.context() as patch:
        patch.setattr(getattr(engine, part) if part else engine, method, interrupted)
        while engine.has_unfinished():
            with suppress(KeyboardInterrupt):
                deltas += engine.step()
            engine.memory.audit()
    survivors = {each.request_id: each.request_output.outputs[0] for each in deltas if each.request_output is not None}
    assert set(survivors) == set(prompts)
    survivors = {each: output for each, output in survivors.items() if output.finish_reason != "abort"}
    assert survivors
    for request_id, output in survivors.items():
        assert output.token_ids == generate_alone(MODEL, prompts[request_id], 24)


def test_a_refused_request_leaves_no_trace() -> None:
    engine = tiny_engine(MODEL)
    engine.add_request([1], request_id="mine")
    with pytest.raises(InvalidRequest, match="already in use"):
        engine.add_request([2], request_id="mine")
    with pytest.raises(RequestTooLarge):
        engine.add_request([1] * 90, SamplingParams(max_tokens=90))
    assert list(drain(engine)) == ["mine"]


def test_automatic_ids_avoid_those_that_callers_chose() -> None:
    engine = tiny_engine(MODEL)
    engine.add_request([1], SamplingParams(max_tokens=1), request_id="request-1")
    assert len({engine.add_request([1], SamplingParams(max_tokens=1)) for _ in range(3)} | {"request-1"}) == 4


def test_an_end_token_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"\[256\] lie outside the model's vocabulary of 200"):
        tiny_engine(tiny_model(vocab_size=200, eos_token_ids=()))


def test_not_a_number_ends_its_own_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(MODEL)
    sick, well = (engine.add_request([x, 8, 7], SamplingParams(temperature=0, max_tokens=4)) for x in (1, 2))
    healthy = engine.model.logits
    calls = 0

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        rows = healthy(hidden)
        if calls == 3:
            rows[0, 5] = np.nan
        return rows

    monkeypatch.setattr(engine.model, "logits", logits)
    finished = drain(engine)
    assert finished[sick].outputs[0].finish_reason == "error"
    assert "nan" in str(finished[sick].outputs[0].stop_reason)
    assert len(finished[sick].outputs[0].token_ids) == 2
    assert tokens([finished[well]]) == [[generate_alone(MODEL, [2, 8, 7], 4)]]


def test_requests_without_a_seed_differ_and_a_new_engine_repeats_them() -> None:
    params = [SamplingParams(temperature=1, max_tokens=8, ignore_eos=True)] * 3
    first = tokens(run(tiny_engine(MODEL), [[1, 2]] * 3, params))
    assert len({str(sample) for sample in first}) == 3
    assert tokens(run(tiny_engine(MODEL), [[1, 2]] * 3, params)) == first
    assert tokens(run(tiny_engine(MODEL, seed=1), [[1, 2]] * 3, params)) != first
