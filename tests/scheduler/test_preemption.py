"""Who yields when blocks run out, and how it comes back."""

from __future__ import annotations

import pytest

from looseleaf.scheduler import Request, Scheduler, SchedulerConfig, SequenceState


@pytest.fixture
def short_of_blocks(make_memory):
    """Three sequences of 4 tokens in a pool of 4 blocks of 4: after their first token each wants a block more."""
    config = SchedulerConfig(watermark=0)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=4, block_size=4))
    requests = [Request(name, 4, 9) for name in "abc"]
    for request in requests:
        scheduler.add(request)
    scheduler.commit(scheduler.schedule(0.0), [], 0.0)
    return scheduler, [request.sequences[0] for request in requests]


def test_the_latest_yields_until_the_others_fit(short_of_blocks):
    scheduler, (a, b, c) = short_of_blocks
    plan = scheduler.schedule(0.0)
    assert plan.preempted == [c]
    assert plan.sequences == [a, b]
    assert plan.admitted == []
    assert (c.state, c.seq_id, c.num_tokens, c.num_computed) == (SequenceState.WAITING, -1, 5, 0)
    assert c.num_preemptions == scheduler.num_preemptions == 1
    assert scheduler.num_recomputed_tokens == 4
    assert scheduler.waiting_reason == "blocks"


def test_it_recomputes_all_it_knows_before_anything_later_is_admitted(short_of_blocks):
    scheduler, (a, b, c) = short_of_blocks
    later = Request("later", 4, 1)
    scheduler.add(later)
    plan = scheduler.schedule(0.0)
    assert later.sequences[0] not in plan.sequences
    scheduler.commit(plan, [a], 0.0)
    plan = scheduler.schedule(0.0)
    assert plan.admitted == [c]
    assert plan.sequences == [b, c]
    assert plan.num_scheduled.tolist() == [1, 5]
    assert plan.num_samples.tolist() == [1, 1]
    assert scheduler.waiting == later.sequences
    scheduler.commit(plan, [], 0.0)
    assert (c.num_computed, c.num_tokens) == (5, 6)


def test_the_one_that_asks_yields_itself_if_it_is_the_latest(make_memory):
    config = SchedulerConfig(watermark=0, max_num_batched_tokens=4)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=3, block_size=4))
    old, new = Request("old", 8, 2), Request("new", 4, 5)
    scheduler.add(old)
    scheduler.commit(scheduler.schedule(0.0), [], 0.0)
    scheduler.commit(scheduler.schedule(0.0), [], 0.0)
    scheduler.add(new)
    plan = scheduler.schedule(0.0)  # the third block goes to the older
    assert plan.sequences == old.sequences
    assert scheduler.waiting == new.sequences


def test_a_prompt_in_progress_yields_to_an_older_decode(make_memory):
    config = SchedulerConfig(watermark=0, max_num_batched_tokens=5)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=4, block_size=4))
    old, new = Request("old", 4, 9), Request("new", 12, 2, num_samples=2)
    scheduler.add(old)
    scheduler.add(new)
    scheduler.commit(scheduler.schedule(0.0), [], 0.0)
    assert new.sequences[0].num_computed == 1
    plan = scheduler.schedule(0.0)
    assert plan.preempted == new.sequences[:1]
    assert plan.sequences == old.sequences
    assert [s.state for s in new.sequences] == [SequenceState.WAITING, SequenceState.PENDING_FORK]
    assert scheduler.num_recomputed_tokens == 1


def test_what_a_preemption_leaves_over_is_used_in_the_next_step(make_memory):
    config = SchedulerConfig(watermark=0)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=5, block_size=4))
    old, large, small = Request("old", 4, 9), Request("large", 16, 4), Request("small", 4, 2)
    for request in (old, large, small):
        scheduler.add(request)
    scheduler.commit(scheduler.schedule(0.0), [], 0.0)
    assert scheduler.waiting == small.sequences
    plan = scheduler.schedule(0.0)
    assert plan.preempted == large.sequences
    scheduler.commit(plan, [], 0.0)
    assert scheduler.schedule(0.0).admitted == small.sequences  # 3 blocks are free, the large one needs 5


def test_no_livelock_at_the_tightest_pool(allocator, make_memory):
    """Every request alone fills the pool, all arrive at once, with samples: each still ends, oldest first."""
    config = SchedulerConfig(watermark=0, max_num_seqs=6, max_model_len=17, max_num_batched_tokens=7)
    memory = make_memory(allocator, config, num_blocks=8, block_size=2)
    scheduler = Scheduler(config, memory)
    requests = [Request(str(number), 1 + 2 * number, 16 - 2 * number, num_samples=3) for number in range(4)]
    for request in requests:
        scheduler.add(request)
    ended = []
    for _ in range(2000):
        plan = scheduler.schedule(0.0)
        done = {
            member
            for s, samples in zip(plan.sequences, plan.num_samples.tolist(), strict=True)
            if samples and s.num_tokens + 1 == s.request.final_len
            for member in [s, *s.request.pending_forks]
        }
        ended += sorted(s.precedence for s in done)
        scheduler.commit(plan, done, 0.0)
        memory.audit()
        if not scheduler.has_unfinished():
            break
    assert ended == [(number, sample) for number in range(4) for sample in range(3)]
    assert memory.num_free_blocks == 8
