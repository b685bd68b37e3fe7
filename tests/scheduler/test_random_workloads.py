"""Thousands of small workloads, most of them on real paged memory; the driver in conftest checks each step."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

NUM_WORKLOADS = {"paged": 800, "naive": 60, "naive-unshared": 60}
RANDOM = st.randoms(use_true_random=False)


@pytest.mark.parametrize("aborts", [False, True], ids=["undisturbed", "aborts"])
def test_every_step_holds_and_everything_ends(allocator, make_workload, drive, aborts):
    count = NUM_WORKLOADS.get(allocator, 40)
    requests = accepted = preemptions = ended_early = 0
    for seed in range(count):
        workload = make_workload(random.Random(f"{allocator} {aborts} {seed}"), aborts=aborts)
        run = drive(workload, allocator)
        requests += len(workload.requests)
        accepted += len(run.accepted)
        preemptions += run.scheduler.num_preemptions
        ended_early += len(run.ended_early)
    assert requests * 0.8 < accepted < requests
    assert preemptions > 0
    assert (ended_early > 0) == aborts


@settings(max_examples=300, deadline=None)
@given(rng=RANDOM, aborts=st.booleans())
def test_every_step_holds_on_adversarial_workloads(make_workload, drive, rng, aborts):
    drive(make_workload(rng, aborts=aborts), "paged")


@pytest.mark.parametrize("seed", range(8))
def test_the_same_workload_gives_the_same_plans(allocator, make_workload, drive, seed):
    first, second = (
        drive(make_workload(random.Random(f"again {seed}"), aborts=True), allocator).plans for _ in range(2)
    )
    assert first == second
