"""Runs of decode steps: what `schedule_run` does is what as many calls of `schedule` and `commit` do."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.memory import ALLOCATORS, make_manager
from looseleaf.scheduler import InvalidCommit, Request, Scheduler, SchedulerConfig, StepOutOfOrder


def drawn_scheduler(seed: int) -> tuple[Scheduler, list[tuple[int, Request]]]:
    """A scheduler and requests with the number of steps after which each arrives; the same at every call."""
    rng = random.Random(seed)
    config = SchedulerConfig(
        max_num_batched_tokens=rng.choice([8, 32]),
        max_num_seqs=rng.choice([2, 4, 8]),
        max_model_len=80,
        watermark=rng.choice([0.0, 0.1]),
        max_bypass=rng.choice([0, 4]),
        policy=rng.choice(["fcfs", "priority", "fair"]),
    )
    memory = make_manager(
        rng.choice([ALLOCATORS[0], *ALLOCATORS]), rng.randint(8, 40), rng.randint(1, 4), config.max_num_seqs
    )
    scheduler, arrivals = Scheduler(config, memory), []
    for number in range(rng.randint(1, 8)):
        request = Request(
            str(number),
            prompt_len=rng.randint(1, 12),
            max_tokens=rng.randint(1, 30),
            num_samples=rng.choice([1, 1, 2]),
            arrival=float(number),
            priority=rng.randint(0, 1),
            tenant=rng.choice("ab"),
            weight=1 / 3,
        )
        if request.final_len <= scheduler.largest_request:
            arrivals.append((rng.randint(0, 20), request))
    return scheduler, sorted(arrivals, key=lambda arrival: arrival[0])


def state(scheduler: Scheduler) -> object:
    memory, shares = scheduler.memory, scheduler._shares
    return (
        scheduler._step,
        [(str(s), s.num_tokens, s.num_computed, s.seq_id, s.state, s.num_bypasses) for s in scheduler.running],
        [(str(s), s.num_tokens, s.num_bypasses) for s in scheduler.waiting],
        scheduler.waiting_reason,
        scheduler.num_preemptions,
        scheduler.num_recomputed_tokens,
        None if shares is None else dict(shares._counters),
        memory.block_tables.tolist(),
        memory.lengths.tolist(),
        memory.usage(),
        memory.step,
    )


def driven(seed: int, *, runs: bool) -> Iterator[tuple[int, object]]:
    """The state after each event, by step."""
    scheduler, arrivals = drawn_scheduler(seed)
    rng = random.Random(seed + 1)
    step = 0
    while arrivals or scheduler.has_unfinished():
        while arrivals and (arrivals[0][0] <= step or not scheduler.has_unfinished()):
            scheduler.add(arrivals.pop(0)[1])
        until = arrivals[0][0] - step if arrivals else 1000
        outlook = scheduler.outlook(until) if runs else None
        if outlook is not None:
            count = rng.randint(1, outlook.num_steps)
            before = scheduler.num_running
            run = scheduler.schedule_run(count)
            assert (outlook.num_seqs, outlook.context_tokens) == (before, int(run.num_tokens.sum()))
            scheduler.commit_run(run, scheduler.due_in_run(run))
            step += count
        else:
            plan = scheduler.schedule(0.0)
            if plan:
                scheduler.commit(plan, scheduler.due(plan), 0.0)
            step += 1
        scheduler.memory.audit()
        yield step, state(scheduler)


@given(seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_a_run_leaves_what_its_steps_leave(seed: int) -> None:
    singly = dict(driven(seed, runs=False))
    for step, after in driven(seed, runs=True):
        assert after == singly[step]


@pytest.fixture
def decoding() -> Scheduler:
    """Two sequences of 4 and 6 known tokens, of which 20 more are wanted."""
    scheduler = Scheduler(SchedulerConfig(max_model_len=64), make_manager("paged", 40, 4, 64))
    scheduler.add(Request("a", 3, 20))
    scheduler.add(Request("b", 5, 20))
    plan = scheduler.schedule(0.0)
    scheduler.commit(plan, (), 0.0)
    return scheduler


def test_runs_keep_to_the_order_of_schedule_and_commit(decoding: Scheduler) -> None:
    assert decoding.outlook(100) == (2, 10, 19)
    with pytest.raises(StepOutOfOrder):
        decoding.schedule_run(20)
    run = decoding.schedule_run(5)
    assert decoding.outlook(100) is None
    for call in (lambda: decoding.schedule(0.0), lambda: decoding.schedule_run(1)):
        with pytest.raises(StepOutOfOrder):
            call()
    decoding.commit_run(run, ())
    with pytest.raises(StepOutOfOrder):
        decoding.commit_run(run, ())
    assert [sequence.num_tokens for sequence in decoding.running] == [9, 11]


def test_a_run_ends_those_that_are_reported_and_no_others(decoding: Scheduler) -> None:
    run = decoding.schedule_run(19)
    with pytest.raises(InvalidCommit):
        decoding.commit_run(run, ())
    first, second = run.sequences
    with pytest.raises(InvalidCommit):
        decoding.commit_run(run, (first, second, Request("c", 1, 1).sequences[0]))
    decoding.commit_run(run, (first, second))
    assert not decoding.has_unfinished()
    assert decoding.memory.num_free_blocks == 40


def test_a_sequence_may_end_early_in_the_last_step_and_be_aborted_in_flight(decoding: Scheduler) -> None:
    run = decoding.schedule_run(3)
    decoding.abort("b")
    decoding.commit_run(run, run.sequences[:1])
    assert not decoding.has_unfinished()
    decoding.memory.audit()
    assert decoding.memory.num_free_blocks == 40


def test_there_is_no_run_while_something_is_to_be_decided(decoding: Scheduler) -> None:
    decoding.add(Request("c", 3, 3))
    assert decoding.outlook(10) is None
    plan = decoding.schedule(0.0)
    assert decoding.outlook(10) is None
    decoding.commit(plan, (), 0.0)
    assert decoding.outlook(10) == (3, 5 + 7 + 4, 2)


def test_a_run_stops_before_blocks_run_short() -> None:
    scheduler = Scheduler(SchedulerConfig(max_model_len=64, watermark=0.0), make_manager("paged", 6, 4, 64))
    for name in "ab":
        scheduler.add(Request(name, 4, 16))
    scheduler.commit(scheduler.schedule(0.0), (), 0.0)
    outlook = scheduler.outlook(100)
    assert outlook is not None
    assert outlook.num_steps == 8  # two blocks more each: then the pool is full
    run = scheduler.schedule_run(8)
    assert run.blocks_taken.tolist() == [2, 0, 0, 0, 2, 0, 0, 0]
    scheduler.commit_run(run, ())
    assert scheduler.outlook(100) is None
    assert [str(sequence) for sequence in scheduler.schedule(0.0).preempted] == ["sample 0 of request 'b'"]
    assert np.array_equal(run.num_tokens, [5, 5])
