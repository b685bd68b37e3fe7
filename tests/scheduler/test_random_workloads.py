"""Thousands of small workloads, each checked at every step by the driver in conftest."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from looseleaf.errors import ConfigurationError

NUM_SEEDED = 400


@pytest.mark.parametrize("aborts", [False, True])
def test_every_step_of_seeded_workloads_holds(allocator, make_workload, drive, aborts):
    ran = preemptions = 0
    for seed in range(NUM_SEEDED):
        workload = make_workload(random.Random(f"{allocator} {aborts} {seed}"), aborts=aborts)
        try:
            run = drive(workload, allocator)
        except ConfigurationError:  # a pool too small for any request at all
            continue
        ran += bool(run.accepted)
        preemptions += run.scheduler.num_preemptions
    assert ran > NUM_SEEDED // 3
    assert preemptions > 0
