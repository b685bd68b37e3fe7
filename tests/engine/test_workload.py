"""What a measured run reports, held against cases whose answer is known and against the stream of memory events."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf import SamplingParams
from looseleaf.engine.engine import Engine
from looseleaf.engine.workload import WorkloadRequest, run_workload
from looseleaf.errors import RequestTooLarge
from looseleaf.memory.events import Allocate, Copy, Free, MemoryEvent, Share
from looseleaf.memory.factory import ALLOCATORS
from tiny_model import generate_alone, tiny_engine, tiny_model

MODEL = tiny_model()


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


class HeldBlocks:
    """The number of held blocks and its peak, from memory's events alone."""

    def __init__(self, engine: Engine) -> None:
        self.peak = 0
        self._tables: dict[int, set[int]] = defaultdict(set)
        engine.events.subscribe(self._on_event)

    @property
    def now(self) -> int:
        return len(set().union(*self._tables.values()))

    def _on_event(self, event: MemoryEvent) -> None:
        for place, (seq, block) in enumerate(zip(event.sequences.tolist(), event.blocks.tolist(), strict=True)):
            if isinstance(event, Copy):
                self._tables[seq].discard(int(event.sources[place]))
            if isinstance(event, Allocate | Copy | Share):
                self._tables[seq].add(block)
            elif isinstance(event, Free):
                self._tables[seq].discard(block)
        self.peak = max(self.peak, self.now)


def test_one_request_token_by_token() -> None:
    """Blocks of one slot hold a token each as soon as they are held: nothing is wasted."""
    engine = tiny_engine(MODEL, num_blocks=40, block_size=1, max_model_len=40)
    run = run_workload(engine, [([1, 2, 3], greedy(5))])
    assert run.outputs[0].outputs[0].token_ids == generate_alone(MODEL, [1, 2, 3], 5)
    assert (run.steps, run.preemptions, run.prompt_tokens, run.output_tokens) == (5, 0, 3, 5)
    pool = run.pool
    assert (pool.peak_blocks, pool.peak_sequences, pool.num_blocks, pool.peak_saved_slots) == (7, 1, 40, 0)
    assert pool.mean_sequences == pytest.approx(1)
    assert pool.held_slots_with_tokens == pytest.approx(1)
    assert 3 / 40 <= pool.pool_slots_with_tokens <= 7 / 40
    assert len(run.first_token_seconds) == 1
    assert run.median_first_token_seconds == run.first_token_seconds[0]
    assert 0 < run.first_token_seconds[0] < run.seconds
    assert run.prompt_tokens_per_second == pytest.approx(3 / run.first_token_seconds[0])
    times = run.outputs[0].metrics
    assert times is not None
    assert times.finished_time is not None
    assert times.first_token_time is not None
    assert run.decode_tokens_per_second == pytest.approx(4 / (times.finished_time - times.first_token_time))


def test_one_token_has_no_decoding_rate() -> None:
    assert run_workload(tiny_engine(MODEL), [([1, 2, 3], greedy(1))]).decode_tokens_per_second is None


def test_requests_that_fail_at_their_first_token_are_results_too(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(MODEL)
    logits = engine.model.logits
    monkeypatch.setattr(engine.model, "logits", lambda hidden: logits(hidden) * float("nan"))
    run = run_workload(engine, [([1, 2, 3], greedy(4))])
    assert run.outputs[0].outputs[0].finish_reason == "error"
    assert (run.output_tokens, run.first_token_seconds) == (0, [])
    assert run.median_first_token_seconds is run.prompt_tokens_per_second is run.decode_tokens_per_second is None


def test_a_reservation_for_the_longest_is_counted_as_unused() -> None:
    engine = tiny_engine(MODEL, num_blocks=40, block_size=1, max_model_len=40, allocator="contiguous-max")
    pool = run_workload(engine, [([1, 2, 3], greedy(5))]).pool
    assert pool.peak_blocks == 40
    assert pool.held_slots_with_tokens == pytest.approx(pool.pool_slots_with_tokens)
    assert 3 / 40 <= pool.held_slots_with_tokens <= 7 / 40


def test_samples_share() -> None:
    """Four samples of a 10-token prompt at block 4: the two full blocks are shared to the end."""
    engine = tiny_engine(MODEL)
    params = SamplingParams(n=4, max_tokens=4, ignore_eos=True)
    run = run_workload(engine, [([7] * 10, params)])
    assert (run.output_tokens, run.pool.peak_sequences, run.pool.peak_saved_slots) == (16, 4, 24)


@pytest.mark.parametrize("allocator", ALLOCATORS)
@settings(max_examples=6, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=7),
    num_blocks=st.integers(16, 48),
)
def test_any_workload(allocator: str, shapes: list[tuple[int, int]], num_blocks: int) -> None:
    engine = tiny_engine(MODEL, num_blocks=num_blocks, max_model_len=64, allocator=allocator)
    held = HeldBlocks(engine)
    requests: list[WorkloadRequest] = [([i + 1] * length, greedy(count)) for i, (length, count) in enumerate(shapes)]
    finished: list[int] = []
    run = run_workload(engine, requests, on_finished=lambda index, _output: finished.append(index))
    assert sorted(finished) == list(range(len(requests)))
    assert [output.prompt_token_ids for output in run.outputs] == [prompt for prompt, _ in requests]
    assert [len(output.outputs[0].token_ids) for output in run.outputs] == [count for _, count in shapes]
    assert run.output_tokens == sum(count for _, count in shapes)
    assert run.prompt_tokens == sum(length for length, _ in shapes)
    pool = run.pool
    assert (held.peak, held.now) == (pool.peak_blocks, 0)
    assert 1 <= pool.mean_sequences <= pool.peak_sequences <= len(shapes)
    assert 0 < pool.pool_slots_with_tokens <= pool.held_slots_with_tokens <= 1
    assert engine.on_plan is None


def test_preemptions_are_counted() -> None:
    engine = tiny_engine(MODEL, num_blocks=12, max_model_len=40, watermark=0.0)
    run = run_workload(engine, [([i] * 8, greedy(20)) for i in range(1, 5)])
    assert run.preemptions > 0
    assert [o.outputs[0].token_ids for o in run.outputs] == [generate_alone(MODEL, [i] * 8, 20) for i in range(1, 5)]


def test_a_request_that_never_fits_stops_all_before_the_first() -> None:
    engine = tiny_engine(MODEL)
    with pytest.raises(RequestTooLarge, match=r"prompts\[1\]"):
        run_workload(engine, [([1], greedy(2)), ([1] * 90, greedy(20))])
    assert not engine.has_unfinished()


def test_an_interrupted_run_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(MODEL)

    def interrupted(*_arguments: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.model, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_workload(engine, [([1], greedy(2))])
    assert not engine.has_unfinished()
    assert engine.on_plan is None
    engine.memory.audit()
    assert run_workload(engine, [([1], greedy(2))]).output_tokens == 2
