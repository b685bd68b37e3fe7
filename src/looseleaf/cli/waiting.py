"""How the threads of a command wait for one another. Must be settled before torch is loaded."""

from __future__ import annotations

import os

SPIN_COUNT = 10_000
"""Rounds that a thread of GNU OpenMP waits awake for the others before it sleeps: a few hundred microseconds."""


def limit_spinning() -> None:
    """Let threads that wait for others fall asleep after a moment, instead of holding a processor that those need.

    GNU OpenMP, which torch uses on Linux, spins for milliseconds at the end of each parallel region. On a machine
    that has other work, a step of hundreds of regions then takes hundreds of time slices. What the user has set is
    left alone.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPIN_COUNT))
