"""Priorities and fair shares: the order that was asked for, nobody starved, shares in proportion to weights."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.errors import ConfigurationError, InvalidRequest
from looseleaf.scheduler import Request, Scheduler, SchedulerConfig, Sequence, SequenceState, StepPlan
from looseleaf.scheduler.policy import FairShares

TENANTS = {"a": 1.0, "b": 2.0, "c": 0.5}


def step(scheduler: Scheduler) -> StepPlan:
    """One step in which nobody stops before max_tokens."""
    plan = scheduler.schedule(0.0)
    done = [
        member
        for s, samples in zip(plan.sequences, plan.num_samples.tolist(), strict=True)
        if samples and s.num_tokens + 1 == s.request.final_len
        for member in [s, *s.request.pending_forks]
    ]
    scheduler.commit(plan, done, 0.0)
    return plan


def with_policy(workload: Any, policy: str, rng: random.Random) -> Any:
    workload.config = replace(workload.config, policy=policy, priority_ageing_seconds=rng.choice([0.1, 5.0, 1e6]))
    for arrival, request in workload.requests:
        request.arrival = float(arrival)
        request.priority = rng.randint(-3, 3)
        request.tenant = rng.choice(list(TENANTS))
        request.weight = TENANTS[request.tenant]
    return workload


@pytest.mark.parametrize("policy", ["priority", "fair"])
@pytest.mark.parametrize("aborts", [False, True], ids=["undisturbed", "aborts"])
def test_every_step_holds_and_everything_ends(allocator, make_workload, drive, policy, aborts):
    for seed in range(60 if allocator == "paged" else 8):
        rng = random.Random(f"{allocator} {policy} {aborts} {seed}")
        run = drive(with_policy(make_workload(rng, aborts=aborts), policy, rng), allocator)
        if policy == "fair":
            assert run.scheduler._shares.num_known == 0


@settings(max_examples=50, deadline=None)
@given(rng=st.randoms(use_true_random=False), policy=st.sampled_from(["priority", "fair"]))
def test_every_step_holds_on_adversarial_workloads(make_workload, drive, rng, policy):
    drive(with_policy(make_workload(rng, aborts=True), policy, rng), "paged")


@pytest.mark.parametrize("policy", ["priority", "fair"])
def test_the_same_workload_gives_the_same_plans(make_workload, drive, policy):
    for seed in range(10):
        runs = []
        for _ in range(2):
            rng = random.Random(f"again {seed}")
            runs.append(drive(with_policy(make_workload(rng, aborts=True), policy, rng), "paged").plans)
        assert runs[0] == runs[1]


def one_at_a_time(make_memory, **settings: Any) -> Scheduler:
    config = SchedulerConfig(max_num_seqs=1, max_model_len=16, **settings)
    return Scheduler(config, make_memory("paged", config, num_blocks=16, block_size=4))


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 40)), min_size=1, max_size=12))
def test_the_most_urgent_goes_first_and_equals_by_arrival(make_memory, requests):
    scheduler = one_at_a_time(make_memory, policy="priority", priority_ageing_seconds=10)
    for number, (priority, arrival) in enumerate(sorted(requests, key=lambda item: item[1])):
        scheduler.add(Request(f"{number}", 4, 2, priority=priority, arrival=arrival))
    admitted: list[Request] = []
    while scheduler.has_unfinished():
        admitted += [sequence.request for sequence in step(scheduler).admitted]
    assert admitted == sorted(admitted, key=lambda r: (r.priority + r.arrival / 10, int(r.request_id)))
    assert len(admitted) == len(requests)


def test_an_endless_stream_of_urgent_requests_starves_nobody(make_memory):
    scheduler = one_at_a_time(make_memory, policy="priority", priority_ageing_seconds=10)
    patient = Request("patient", 4, 2, priority=3, arrival=0.0)
    scheduler.add(patient)
    for second in range(100):
        scheduler.add(Request(f"{second}", 4, 2, priority=0, arrival=float(second)))
        step(scheduler)
        step(scheduler)
        if patient.sequences[0].state is SequenceState.FINISHED:
            break
    assert second == 30  # what arrives from then on comes behind it


def test_the_least_urgent_gives_way_when_blocks_run_out(make_memory):
    config = SchedulerConfig(policy="priority", watermark=0)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=4, block_size=4))
    relaxed, urgent = Request("relaxed", 7, 9, priority=1), Request("urgent", 8, 8, priority=0)
    scheduler.add(relaxed)
    scheduler.add(urgent)
    preempted: list[Sequence] = []
    while scheduler.has_unfinished():
        preempted += step(scheduler).preempted
    assert preempted == relaxed.sequences


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    rng=st.randoms(use_true_random=False),
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=4),
    num_blocks=st.sampled_from([30, 200]),
)
def test_shares_follow_the_weights(make_memory, rng, weights, num_blocks):
    """Tenants that always have requests waiting, each of a kind of its own, get service in proportion."""
    config = SchedulerConfig(max_num_seqs=6, max_model_len=48, policy="fair", max_bypass=0)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=num_blocks, block_size=4))
    kinds = [(rng.randint(1, 30), rng.randint(1, 18)) for _ in weights]
    waiting: Counter[int] = Counter()
    got = [0.0] * len(weights)
    number = 0
    for _ in range(200):
        for tenant, (prompt_len, max_tokens) in enumerate(kinds):
            while waiting[tenant] < 8:
                number += 1
                scheduler.add(Request(f"{number}", prompt_len, max_tokens, tenant=str(tenant), weight=weights[tenant]))
                waiting[tenant] += 1
        plan = step(scheduler)
        for sequence in plan.admitted:
            if sequence.num_preemptions == 0:
                waiting[int(sequence.request.tenant)] -= 1
                got[int(sequence.request.tenant)] += sequence.request.prompt_len
        for sequence, samples in zip(plan.sequences, plan.num_samples.tolist(), strict=True):
            got[int(sequence.request.tenant)] += samples * FairShares.OUTPUT_COST
    shares = [each / weight for each, weight in zip(got, weights, strict=True)]
    cost_in_flight = 30 + (config.max_num_seqs + 1) * 18 * FairShares.OUTPUT_COST
    assert max(shares) - min(shares) <= cost_in_flight / min(weights)
    assert sum(got) > cost_in_flight


def test_a_pause_is_not_saved_up(make_memory):
    scheduler = one_at_a_time(make_memory, policy="fair")
    for number in range(60):
        scheduler.add(Request(f"busy {number}", 4, 2, tenant="busy"))
        if number == 0:
            scheduler.add(Request("rare 0", 4, 2, tenant="rare"))
    for _ in range(40):
        step(scheduler)
    for number in range(1, 11):
        scheduler.add(Request(f"rare {number}", 4, 2, tenant="rare"))
    admitted = [s.request.tenant for _ in range(20) for s in step(scheduler).admitted]
    assert 4 <= admitted.count("rare") <= 6


def test_a_large_request_is_not_put_off_for_ever(make_memory):
    config = SchedulerConfig(max_num_seqs=8, max_model_len=64, policy="fair", watermark=0, max_bypass=3)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=16, block_size=4))
    large = Request("large", 56, 4, tenant="a")
    for number in range(400):
        for tenant in "ab":
            scheduler.add(Request(f"{tenant}{number}", 5, 6, tenant=tenant))
        if number == 5:
            scheduler.add(large)
        step(scheduler)
        if large.sequences[0].state is SequenceState.FINISHED:
            break
    assert large.sequences[0].state is SequenceState.FINISHED


def test_who_has_got_most_gives_way_when_blocks_run_out(make_memory):
    config = SchedulerConfig(policy="fair", watermark=0)
    scheduler = Scheduler(config, make_memory("paged", config, num_blocks=4, block_size=4))
    much, little = Request("much", 8, 8, tenant="a"), Request("little", 7, 9, tenant="b", weight=4)
    scheduler.add(much)
    scheduler.add(little)
    preempted: list[Sequence] = []
    while scheduler.has_unfinished():
        preempted += step(scheduler).preempted
    assert preempted == much.sequences


def test_tenants_that_come_and_go_leave_nothing(make_memory):
    scheduler = one_at_a_time(make_memory, policy="fair")
    scheduler.add(Request("stays", 4, 12, tenant="stays", weight=100))
    for number in range(200):
        scheduler.add(Request(f"{number}", 4, 1, tenant=f"{number}"))
        step(scheduler)
    while scheduler.has_unfinished():
        step(scheduler)
    assert scheduler._shares is not None
    assert scheduler._shares.num_known == 0


@pytest.mark.parametrize(
    "wrong", [{"policy": "lifo"}, {"priority_ageing_seconds": 0}, {"priority_ageing_seconds": float("nan")}], ids=str
)
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(ConfigurationError):
        SchedulerConfig(**wrong)


@pytest.mark.parametrize("weight", [0, -1, float("inf"), float("nan")])
def test_weights_that_make_no_sense(make_memory, weight):
    scheduler = one_at_a_time(make_memory, policy="fair")
    with pytest.raises(InvalidRequest, match="weight"):
        scheduler.add(Request("r", 4, 2, weight=weight))
    assert not scheduler.has_unfinished()
