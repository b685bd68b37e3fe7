"""Samples of one prompt: when they fork, what if they cannot, and that their copies come in time."""

from __future__ import annotations

import numpy as np
import pytest

from looseleaf.scheduler import Request, Scheduler, SchedulerConfig, SequenceState

RUNNING, WAITING, PENDING, FINISHED = (
    SequenceState.RUNNING,
    SequenceState.WAITING,
    SequenceState.PENDING_FORK,
    SequenceState.FINISHED,
)


@pytest.fixture
def make_scheduler(make_memory):
    def make(allocator: str, num_blocks: int, **settings: int) -> Scheduler:
        config = SchedulerConfig(max_model_len=16, watermark=0, **settings)
        return Scheduler(config, make_memory(allocator, config, num_blocks=num_blocks, block_size=4))

    return make


def test_samples_fork_when_the_prompt_is_complete_and_share_its_blocks(make_scheduler):
    scheduler = make_scheduler("paged", 20, max_num_batched_tokens=6)
    request = Request("r", 10, 5, num_samples=4)
    scheduler.add(request)
    plan = scheduler.schedule(0.0)
    assert plan.num_samples.tolist() == [0]
    scheduler.commit(plan, [], 0.0)
    assert [s.state for s in request.sequences] == [RUNNING, PENDING, PENDING, PENDING]
    plan = scheduler.schedule(0.0)
    assert plan.num_samples.tolist() == [4]
    scheduler.commit(plan, [request.sequences[2]], 0.0)
    assert [s.state for s in request.sequences] == [RUNNING, RUNNING, FINISHED, RUNNING]
    assert [s.num_tokens for s in request.sequences] == [11] * 4
    assert [s.num_computed for s in request.sequences] == [10, 10, 0, 10]
    assert scheduler.memory.num_free_blocks == 20 - 3
    plan = scheduler.schedule(0.0)
    assert plan.num_decodes == 3
    assert len(plan.copies.source) == 2  # of three that write into the shared block, one keeps it
    assert scheduler.memory.num_free_blocks == 20 - 5


@pytest.mark.parametrize("allocator", ["contiguous-oracle", "contiguous-max", "contiguous-pow2", "naive-unshared"])
def test_a_copy_from_a_parent_that_ended_survives_the_reuse_of_its_blocks(make_scheduler, allocator):
    """The parent stops at its first token, and its freed blocks go to a newcomer in the very step of the copies."""
    scheduler = make_scheduler(allocator, 8, max_num_seqs=2)
    size, slots = 4, np.full(32, -1)
    request, newcomer = Request("r", 8, 8, num_samples=2), Request("new", 8, 8)
    scheduler.add(request)
    plan = scheduler.schedule(0.0)
    parent, child = request.sequences
    parent_blocks = scheduler.memory.table(parent.seq_id)
    slots.reshape(-1, size)[parent_blocks[:2]] = np.arange(8).reshape(2, size)
    scheduler.commit(plan, [parent], 0.0)
    scheduler.add(newcomer)
    plan = scheduler.schedule(0.0)
    newcomer_blocks = scheduler.memory.table(newcomer.sequences[0].seq_id)
    assert set(newcomer_blocks[:2]) & set(parent_blocks[:2]), "the scenario needs the reuse"
    for source, destination in zip(*plan.copies, strict=True):
        slots.reshape(-1, size)[destination] = slots.reshape(-1, size)[source]
    slots.reshape(-1, size)[newcomer_blocks[:2]] = 99
    child_blocks = scheduler.memory.table(child.seq_id)
    assert slots.reshape(-1, size)[child_blocks[:2]].ravel().tolist() == list(range(8))


def test_a_sample_that_finds_no_region_waits_and_computes_the_prompt_itself(make_scheduler):
    scheduler = make_scheduler("contiguous-oracle", 4)
    request = Request("r", 6, 3, num_samples=3)  # 8 tokens in the end: two regions fit, a third does not
    scheduler.add(request)
    scheduler.commit(scheduler.schedule(0.0), [], 0.0)
    assert [s.state for s in request.sequences] == [RUNNING, RUNNING, WAITING]
    third = request.sequences[2]
    assert (third.num_tokens, third.num_computed, third.num_preemptions) == (7, 0, 1)
    assert scheduler.num_recomputed_tokens == 6
    plan = scheduler.schedule(0.0)
    assert plan.copies.source.size == 2
    scheduler.commit(plan, [request.sequences[0]], 0.0)
    plan = scheduler.schedule(0.0)
    assert plan.admitted == [third]
    assert (plan.num_scheduled.tolist(), plan.num_samples.tolist()) == ([1, 7], [1, 1])


def test_all_samples_may_stop_at_their_first_token(make_scheduler):
    scheduler = make_scheduler("paged", 4)
    request = Request("r", 6, 1, num_samples=3)
    scheduler.add(request)
    scheduler.commit(scheduler.schedule(0.0), set(request.sequences), 0.0)
    assert [s.state for s in request.sequences] == [FINISHED] * 3
    assert scheduler.memory.num_free_blocks == 4
    assert not scheduler.has_unfinished()
    assert not scheduler.schedule(0.0)


def test_the_copies_of_a_fork_ride_on_the_next_plan_even_if_the_fork_is_not_in_it(make_scheduler):
    """So whoever drops that plan must still make them: here all its requests are aborted, and R lives on."""
    scheduler = make_scheduler("contiguous-oracle", 20, max_num_batched_tokens=3)
    a, q, r = Request("A", 3, 9), Request("Q", 1, 4, num_samples=2), Request("R", 1, 4, num_samples=2)
    scheduler.add(a)
    scheduler.commit(scheduler.schedule(0.0), [], 0.0)
    scheduler.add(q)
    scheduler.add(r)
    plan = scheduler.schedule(0.0)
    assert plan.sequences == [*a.sequences, q.sequences[0], r.sequences[0]]
    source = int(scheduler.memory.table(r.sequences[0].seq_id)[0])
    scheduler.commit(plan, [], 0.0)

    dropped = scheduler.schedule(0.0)
    assert dropped.sequences == [*a.sequences, *q.sequences]
    destination = int(scheduler.memory.table(r.sequences[1].seq_id)[0])
    assert (source, destination) in zip(*(side.tolist() for side in dropped.copies), strict=True)
    scheduler.abort("A")
    scheduler.abort("Q")
    scheduler.commit(dropped, [], 0.0)

    plan = scheduler.schedule(0.0)
    assert plan.sequences == r.sequences
    assert plan.num_computed.tolist() == [1, 1]
    assert plan.copies.source.size == 0
