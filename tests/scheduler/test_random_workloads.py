"""Thousands of small workloads under every allocator; the driver in conftest checks each of their steps."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from looseleaf.errors import ConfigurationError

NUM_WORKLOADS = {"naive": 300, "naive-unshared": 300, "paged": 200}
RANDOM = st.randoms(use_true_random=False)


@pytest.mark.parametrize("aborts", [False, True], ids=["undisturbed", "aborts"])
def test_every_step_holds_and_everything_ends(allocator, make_workload, drive, aborts):
    count = NUM_WORKLOADS.get(allocator, 50)
    ran = preemptions = ended_early = 0
    for seed in range(count):
        workload = make_workload(random.Random(f"{allocator} {aborts} {seed}"), aborts=aborts)
        try:
            run = drive(workload, allocator)
        except ConfigurationError:  # a pool too small for any request at all
            continue
        ran += bool(run.accepted)
        preemptions += run.scheduler.num_preemptions
        ended_early += len(run.ended_early)
    assert ran > count // 3
    assert preemptions > 0
    assert (ended_early > 0) == aborts


@settings(max_examples=100, deadline=None)
@given(rng=RANDOM, aborts=st.booleans())
def test_every_step_holds_on_adversarial_workloads(make_workload, drive, rng, aborts):
    workload = make_workload(rng, aborts=aborts)
    try:
        drive(workload, "naive")
    except ConfigurationError:
        assume(False)


@pytest.mark.parametrize("seed", range(15))
def test_the_same_workload_gives_the_same_plans(allocator, make_workload, drive, seed):
    try:
        first, second = (
            drive(make_workload(random.Random(f"again {seed}"), aborts=True), allocator).plans for _ in range(2)
        )
    except ConfigurationError:
        return
    assert first == second
