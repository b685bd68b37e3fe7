"""First come first served, how far it bends, and that nobody starves; against oracles of its own."""

from __future__ import annotations

import random

import pytest

from looseleaf.scheduler import Request, Scheduler, SchedulerConfig, Sequence, SequenceState


def advance(scheduler: Scheduler) -> list[Sequence]:
    """One step in which nobody stops before max_tokens. Returns whom it admitted."""
    plan = scheduler.schedule(0.0)
    done = [
        member
        for s, samples in zip(plan.sequences, plan.num_samples.tolist(), strict=True)
        if samples and s.num_tokens + 1 == s.request.final_len
        for member in [s, *s.request.pending_forks]
    ]
    scheduler.commit(plan, done, 0.0)
    return plan.admitted


@pytest.mark.parametrize("max_bypass", [0, 1, 5])
def test_an_endless_stream_of_small_requests_passes_a_large_one_only_so_often(allocator, make_memory, max_bypass):
    config = SchedulerConfig(max_num_seqs=4, max_model_len=65, max_bypass=max_bypass, watermark=0)
    scheduler = Scheduler(config, make_memory(allocator, config, num_blocks=64, block_size=1))
    small_len, large = 16, Request("large", 60, 5)
    scheduler.add(Request("small 0", small_len // 2, small_len // 2))
    advance(scheduler)
    scheduler.add(large)
    passed = 0
    for number in range(1, (max_bypass + 2) * small_len):
        scheduler.add(Request(f"small {number}", small_len // 2, small_len // 2))
        admitted = advance(scheduler)
        if large.sequences[0] in admitted:
            break
        passed += len(admitted)
    assert large.sequences[0].state is SequenceState.RUNNING
    expected = 0 if allocator == "contiguous-max" else max_bypass  # there, one region is the whole pool
    assert passed == expected


@pytest.mark.parametrize(("behind", "is_admitted"), [(64, True), (65, False)])
def test_how_far_behind_a_blocked_head_a_smaller_request_is_looked_for(make_memory, behind, is_admitted):
    config = SchedulerConfig(watermark=0)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=4, block_size=4))
    scheduler.add(Request("running", 8, 4))
    advance(scheduler)
    for number in range(behind):
        scheduler.add(Request(f"large {number}", 12, 2))
    small = Request("small", 4, 1)
    scheduler.add(small)
    assert advance(scheduler) == (small.sequences if is_admitted else [])


def test_a_preempted_head_has_used_up_the_bypasses_it_granted_before(make_memory):
    config = SchedulerConfig(watermark=0, max_bypass=1)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=6, block_size=4))
    old, large = Request("old", 4, 20), Request("large", 13, 9)
    for request in (old, Request("filler", 8, 1), large, Request("first", 3, 1)):
        scheduler.add(request)
    assert [s.request.request_id for s in advance(scheduler)] == ["old", "filler", "first"]
    assert advance(scheduler) == large.sequences
    while not large.sequences[0].num_preemptions:
        advance(scheduler)
    second = Request("second", 3, 1)
    scheduler.add(second)
    assert advance(scheduler) == []  # three blocks are free, and large needs five
    scheduler.abort("old")
    assert advance(scheduler) == large.sequences + second.sequences


def test_the_queue_is_served_in_the_order_of_arrival(make_memory):
    config = SchedulerConfig(max_num_seqs=2)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=100, block_size=4))
    for number in range(9):
        scheduler.add(Request(str(number), 3, 1 + number % 4))
    admitted: list[str] = []
    while scheduler.has_unfinished():
        admitted += [s.request.request_id for s in advance(scheduler)]
    assert admitted == [str(number) for number in range(9)]


def test_a_freed_seat_or_block_is_used_in_the_very_next_step(make_memory):
    config = SchedulerConfig(max_num_seqs=1)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=4, block_size=4))
    for name in "abc":
        scheduler.add(Request(name, 3, 2))
    assert [[s.request.request_id for s in advance(scheduler)] for _ in range(6)] == [["a"], [], ["b"], [], ["c"], []]


def test_more_decodes_than_budget_take_turns(make_memory):
    config = SchedulerConfig(max_num_batched_tokens=3, max_num_seqs=8)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=100, block_size=4))
    request = Request("group", 3, 40, num_samples=8)
    scheduler.add(request)
    advance(scheduler)
    for turn in range(1, 25):
        advance(scheduler)
        served = [s.num_tokens - 4 for s in request.sequences]
        assert sum(served) == 3 * turn
        assert max(served) - min(served) <= 1


def test_without_any_bound_each_request_takes_one_step_per_token(make_memory):
    """Prompt and first token in one step, one more each: a run lasts until the last of them, arrival + output."""
    rng = random.Random(5)
    for _ in range(30):
        config = SchedulerConfig(max_num_batched_tokens=10**6, max_num_seqs=100, max_model_len=200)
        scheduler = Scheduler(config, make_memory("paged", config, num_blocks=10**4, block_size=rng.randint(1, 20)))
        arrivals = sorted((rng.randint(0, 30), rng.randint(1, 99), rng.randint(1, 99)) for _ in range(12))
        steps = 0
        while scheduler.has_unfinished() or steps <= arrivals[-1][0]:
            for number, (arrival, prompt_len, max_tokens) in enumerate(arrivals):
                if arrival == steps:
                    scheduler.add(Request(str(number), prompt_len, max_tokens, rng.randint(1, 3)))
            advance(scheduler)
            steps += 1
        assert steps == max(arrival + max_tokens for arrival, _, max_tokens in arrivals)


def oracle(requests: list[tuple[int, int]], budget: int, seats: int) -> list[dict[int, int]]:
    """Tokens per request and step of first come first served in endless memory, decodes (at most `budget`) first."""
    waiting, running = list(range(len(requests))), []
    left_to_compute = [prompt for prompt, _ in requests]
    left_to_sample = [outputs for _, outputs in requests]
    steps = []
    while waiting or running:
        step: dict[int, int] = {}
        for decoding in (True, False):
            for number in running:
                if (left_to_compute[number] == 0) == decoding and sum(step.values()) < budget:
                    step[number] = 1 if decoding else min(left_to_compute[number], budget - sum(step.values()))
        while waiting and len(running) < seats and sum(step.values()) < budget:
            running.append(number := waiting.pop(0))
            step[number] = min(left_to_compute[number], budget - sum(step.values()))
        for number, tokens in step.items():
            left_to_compute[number] = max(0, left_to_compute[number] - tokens)
            left_to_sample[number] -= left_to_compute[number] == 0
        running = [number for number in running if left_to_sample[number]]
        steps.append(step)
    return steps


def test_plans_are_those_of_a_plain_oracle_while_memory_is_endless(make_memory):
    rng = random.Random(11)
    for _ in range(60):
        seats = rng.randint(1, 8)
        budget = rng.randint(seats, 40)
        requests = [(rng.randint(1, 60), rng.randint(1, 20)) for _ in range(rng.randint(1, 15))]
        config = SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=seats, max_model_len=100)
        scheduler = Scheduler(config, make_memory("paged", config, num_blocks=10**4, block_size=4))
        for number, (prompt_len, max_tokens) in enumerate(requests):
            scheduler.add(Request(str(number), prompt_len, max_tokens))
        plans = []
        while scheduler.has_unfinished():
            plan = scheduler.schedule(0.0)
            ids = [int(s.request.request_id) for s in plan.sequences]
            plans.append(dict(zip(ids, plan.num_scheduled.tolist(), strict=True)))
            scheduler.commit(
                plan,
                [
                    s
                    for s, samples in zip(plan.sequences, plan.num_samples.tolist(), strict=True)
                    if samples and s.num_tokens + 1 == s.request.final_len
                ],
                0.0,
            )
        assert plans == oracle(requests, budget, seats)
