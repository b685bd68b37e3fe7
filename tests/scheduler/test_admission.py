"""What is refused, with which numbers, and what is let in when."""

from __future__ import annotations

import random

import pytest

from looseleaf.errors import ConfigurationError, InvalidRequest, RequestTooLarge
from looseleaf.scheduler import Request, Scheduler, SchedulerConfig, SequenceState


def run_alone(scheduler: Scheduler, request: Request) -> None:
    scheduler.add(request)
    for step in range(10 * request.final_len):
        plan = scheduler.schedule(float(step))
        done = [
            s
            for s, samples in zip(plan.sequences, plan.num_samples.tolist(), strict=True)
            if samples and s.num_tokens + 1 == request.final_len
        ]
        scheduler.commit(plan, done, float(step))
        if not scheduler.has_unfinished():
            return
    pytest.fail("it never ended")


def test_the_limit_runs_to_its_end_and_one_token_more_is_refused(allocator, make_memory):
    rng = random.Random(f"limit {allocator}")
    for _ in range(40):
        config = SchedulerConfig(
            max_num_batched_tokens=rng.randint(1, 30),
            max_num_seqs=2,
            max_model_len=rng.randint(2, 60),
            watermark=rng.choice([0, 0.5, 0.99]),
        )
        memory = make_memory(allocator, config, num_blocks=rng.randint(1, 30), block_size=rng.randint(1, 6))
        scheduler = Scheduler(config, memory)
        limit = scheduler.largest_request
        for prompt_len in {1, limit - 1, rng.randint(1, limit - 1)}:
            run_alone(scheduler, Request("fits", prompt_len, limit - prompt_len))
            with pytest.raises(RequestTooLarge) as refusal:
                scheduler.add(Request("does not", prompt_len, limit + 1 - prompt_len))
            assert (refusal.value.needed, refusal.value.limit) == (limit + 1, limit)
            assert str(limit) in str(refusal.value)
            assert refusal.value.hint
            assert not scheduler.has_unfinished()
            assert memory.num_free_blocks == memory.num_blocks


def test_the_limit_of_a_paged_pool_is_its_slots_and_one(make_memory):
    """The last token is sampled and never cached, so 3 blocks of 4 hold a request of 13 tokens."""
    config = SchedulerConfig(max_model_len=1000)
    assert Scheduler(config, make_memory("paged", config, num_blocks=3, block_size=4)).largest_request == 13
    assert Scheduler(config, make_memory("paged", config, num_blocks=999, block_size=4)).largest_request == 1000


def test_the_refusal_names_the_bound(make_memory):
    config = SchedulerConfig(max_model_len=20)
    for num_blocks, named in ((100, "raise max_model_len"), (2, "give the KV cache more memory")):
        scheduler = Scheduler(config, make_memory("paged", config, num_blocks=num_blocks, block_size=4))
        with pytest.raises(RequestTooLarge) as refusal:
            scheduler.add(Request("big", 30, 10))
        assert named in refusal.value.hint


def test_more_samples_than_seats_are_refused(make_memory):
    config = SchedulerConfig(max_num_seqs=3)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=100, block_size=16))
    scheduler.add(Request("three", 5, 5, num_samples=3))
    with pytest.raises(RequestTooLarge) as refusal:
        scheduler.add(Request("four", 5, 5, num_samples=4))
    assert (refusal.value.needed, refusal.value.limit) == (4, 3)


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "num_samples"), [(0, 1, 1), (-3, 5, 1), (1, 0, 1), (1, -1, 1), (1, 1, 0), (1, 1, -2)]
)
def test_nonsense_is_refused(make_memory, prompt_len, max_tokens, num_samples):
    config = SchedulerConfig()
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=100, block_size=16))
    with pytest.raises(InvalidRequest):
        scheduler.add(Request("x", prompt_len, max_tokens, num_samples))
    assert not scheduler.has_unfinished()


def test_an_id_serves_one_request_at_a_time_and_a_request_runs_once(make_memory):
    config = SchedulerConfig()
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=100, block_size=16))
    request = Request("x", 3, 2)
    scheduler.add(request)
    with pytest.raises(InvalidRequest, match="already in use"):
        scheduler.add(Request("x", 3, 2))
    scheduler.abort("x")
    with pytest.raises(InvalidRequest, match="has run before"):
        scheduler.add(request)
    scheduler.add(Request("x", 3, 2))
    assert scheduler.num_waiting == 1


def test_a_memory_that_cannot_serve_is_refused(make_memory):
    config = SchedulerConfig(max_num_seqs=4)
    with pytest.raises(ConfigurationError, match="max_num_seqs"):
        Scheduler(SchedulerConfig(max_num_seqs=5), make_memory("paged", config, num_blocks=9, block_size=16))
    short = SchedulerConfig(max_model_len=1)
    with pytest.raises(ConfigurationError, match="Not one request fits"):
        Scheduler(short, make_memory("paged", short, num_blocks=9, block_size=16))


@pytest.mark.parametrize("setting", ["max_num_batched_tokens", "max_num_seqs", "max_model_len"])
def test_absurd_settings_are_refused(setting):
    with pytest.raises(ConfigurationError, match=setting):
        SchedulerConfig(**{setting: 0})


def test_a_prompt_is_admitted_whole_and_computed_in_chunks(make_memory):
    config = SchedulerConfig(max_num_batched_tokens=10, watermark=0)
    memory = make_memory("paged", config, num_blocks=10, block_size=4)
    scheduler = Scheduler(config, memory)
    scheduler.add(Request("long", 25, 3))
    chunks = []
    for _ in range(3):
        plan = scheduler.schedule(0.0)
        assert memory.num_free_blocks == 10 - 7  # ceil(25 / 4), from the first chunk on
        chunks.append((plan.num_computed.tolist(), plan.num_scheduled.tolist(), plan.num_samples.tolist()))
        scheduler.commit(plan, [], 0.0)
    assert chunks == [([0], [10], [0]), ([10], [10], [0]), ([20], [5], [1])]


def test_the_watermark_holds_for_all_but_the_first(make_memory):
    config = SchedulerConfig(watermark=0.5)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=10, block_size=4))
    for name, prompt_len in (("first", 28), ("second", 4)):  # 7 blocks, then 1: fewer than 5 would stay free
        scheduler.add(Request(name, prompt_len, 2))
    plan = scheduler.schedule(0.0)
    assert [s.request.request_id for s in plan.admitted] == ["first"]
    assert scheduler.waiting_reason == "blocks"
    scheduler.commit(plan, [], 0.0)
    scheduler.abort("first")
    assert [s.request.request_id for s in scheduler.schedule(0.0).admitted] == ["second"]


@pytest.mark.parametrize(("allocator", "admitted"), [("contiguous-max", 4), ("contiguous-oracle", 4), ("paged", 3)])
def test_the_watermark_is_not_asked_of_those_that_reserve_their_growth(make_memory, allocator, admitted):
    """16 blocks are 4 regions of the longest sequence; where sequences grow, the fourth would leave no block free."""
    config = SchedulerConfig(max_model_len=64, watermark=0.01)
    scheduler = Scheduler(config, make_memory(allocator, config, num_blocks=16, block_size=16))
    for number in range(5):
        scheduler.add(Request(str(number), 60, 4))
    assert len(scheduler.schedule(0.0).admitted) == admitted


def test_what_the_head_waits_for(make_memory):
    def reason(first: Request, second: Request, **settings: int) -> str | None:
        config = SchedulerConfig(**settings, watermark=0)
        scheduler = Scheduler(config, make_memory("paged", config, num_blocks=10, block_size=4))
        scheduler.add(first)
        assert scheduler.schedule(0.0).admitted == first.sequences[:1]
        scheduler.commit(scheduler._plan, [], 0.0)
        assert scheduler.waiting_reason is None
        scheduler.add(second)
        scheduler.schedule(0.0)
        return scheduler.waiting_reason

    assert reason(Request("a", 20, 5), Request("b", 20, 5)) == "blocks"
    assert reason(Request("a", 4, 5), Request("b", 4, 5), max_num_seqs=1) == "seats"
    assert reason(Request("a", 4, 5, 2), Request("b", 4, 5, 2), max_num_seqs=3) == "seats"
    assert reason(Request("a", 20, 5), Request("b", 4, 5), max_num_batched_tokens=10) == "budget"
    assert reason(Request("a", 4, 5), Request("b", 4, 5)) is None


def test_pending_forks_keep_their_seats(make_memory):
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=100, block_size=4))
    scheduler.add(Request("group", 12, 5, num_samples=3))
    scheduler.add(Request("pair", 2, 5, num_samples=2))
    scheduler.add(Request("single", 2, 5))
    admitted = []
    for _ in range(4):
        plan = scheduler.schedule(0.0)
        admitted += [s.request.request_id for s in plan.admitted]
        scheduler.commit(plan, [], 0.0)
    assert admitted == ["group", "single"]
    assert [s.state for s in scheduler.running] == [SequenceState.RUNNING] * 4
