"""schedule and commit alternate; a commit that contradicts its plan changes nothing; abort in any state."""

from __future__ import annotations

import pytest

from looseleaf.scheduler import InvalidCommit, Request, Scheduler, SchedulerConfig, SequenceState, StepOutOfOrder


@pytest.fixture
def scheduler(make_memory):
    config = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4, max_model_len=64)
    return Scheduler(config, make_memory("paged", config, num_blocks=16, block_size=4))


def counters(scheduler: Scheduler) -> tuple[object, ...]:
    sequences = [*scheduler.running, *scheduler.waiting]
    return [(s, s.num_tokens, s.num_computed, s.state) for s in sequences], scheduler.memory.num_free_blocks


def test_a_step_in_flight_must_be_committed_before_the_next(scheduler):
    scheduler.add(Request("a", 4, 4))
    plan = scheduler.schedule(0.0)
    with pytest.raises(StepOutOfOrder):
        scheduler.schedule(0.0)
    scheduler.commit(plan, [], 0.0)
    with pytest.raises(StepOutOfOrder):
        scheduler.commit(plan, [], 0.0)
    later = scheduler.schedule(0.0)
    before = counters(scheduler)
    with pytest.raises(StepOutOfOrder):
        scheduler.commit(plan, [], 0.0)
    assert counters(scheduler) == before
    scheduler.commit(later, [], 0.0)


def test_an_empty_plan_needs_no_commit_and_bears_one(scheduler):
    assert not scheduler.schedule(0.0)
    empty = scheduler.schedule(0.0)
    scheduler.commit(empty, [], 0.0)
    with pytest.raises(StepOutOfOrder):
        scheduler.commit(empty, [], 0.0)


def test_only_what_sampled_a_token_may_be_reported_as_finished(scheduler):
    long, other = Request("long", 12, 4, num_samples=2), Request("other", 4, 4)
    scheduler.add(long)
    scheduler.add(other)
    plan = scheduler.schedule(0.0)  # a chunk of the long prompt; the other waits for budget
    before = counters(scheduler)
    for sequence in (*long.sequences, *other.sequences, Request("stranger", 4, 4).sequences[0]):
        with pytest.raises(InvalidCommit, match="sampled no token"):
            scheduler.commit(plan, [sequence], 0.0)
    assert counters(scheduler) == before
    scheduler.commit(plan, [], 0.0)


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_the_last_allowed_token_must_finish_every_sample(scheduler, max_tokens):
    request = Request("a", 4, max_tokens, num_samples=2)
    scheduler.add(request)
    for _ in range(max_tokens - 1):
        scheduler.commit(scheduler.schedule(0.0), [], 0.0)
    plan = scheduler.schedule(0.0)
    before = counters(scheduler)
    for finished in ([], request.sequences[:1], request.sequences[1:]):
        with pytest.raises(InvalidCommit, match="last token"):
            scheduler.commit(plan, finished, 0.0)
        assert counters(scheduler) == before
    scheduler.commit(plan, request.sequences, 0.0)
    assert not scheduler.has_unfinished()


@pytest.mark.parametrize("in_flight", [False, True])
def test_abort_frees_the_blocks_at_once_in_every_state(scheduler, in_flight):
    decoding, group, waiting = Request("decoding", 4, 9), Request("group", 20, 9, 3), Request("waiting", 4, 9)
    for request in (decoding, group, waiting):
        scheduler.add(request)
    scheduler.commit(scheduler.schedule(0.0), [], 0.0)
    plan = scheduler.schedule(0.0) if in_flight else None
    assert scheduler.abort("group") == group.sequences
    assert scheduler.memory.num_free_blocks == 16 - (2 if in_flight else 1)
    assert scheduler.abort("waiting") == waiting.sequences
    assert scheduler.abort("decoding") == decoding.sequences
    assert scheduler.memory.num_free_blocks == 16
    assert not scheduler.has_unfinished()
    assert {s.state for r in (decoding, group, waiting) for s in r.sequences} == {SequenceState.FINISHED}
    if plan:
        scheduler.commit(plan, decoding.sequences, 0.0)  # the engine need not know of the abort
        assert decoding.sequences[0].num_tokens == 5
    assert scheduler.abort("group") == scheduler.abort("never added") == []


def test_a_plan_that_failed_to_run_is_dropped_by_abort_and_commit(scheduler):
    scheduler.add(Request("a", 4, 4))
    scheduler.add(Request("b", 4, 4))
    plan = scheduler.schedule(0.0)
    scheduler.abort("a")
    scheduler.abort("b")
    scheduler.commit(plan, [], 0.0)
    scheduler.add(Request("c", 4, 4))
    assert scheduler.schedule(0.0).num_tokens == 4


def test_events_are_stamped_with_the_step_of_the_plan(scheduler):
    scheduler.add(Request("a", 4, 4))
    for _ in range(3):
        plan = scheduler.schedule(0.0)
        assert scheduler.memory.step == plan.step
        scheduler.commit(plan, [], 0.0)
