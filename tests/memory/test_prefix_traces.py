"""Prefix hits on real traffic: equal to a naive cache's, and to the published figures."""

from __future__ import annotations

import pytest

from prefix_traces import KNOWN, TRACES, Trace, hit_rate, naive_hit_rate

CELLS = [(trace, capacity) for trace in KNOWN for capacity in trace.known]


@pytest.mark.skipif(not TRACES.is_dir(), reason="request traces not found (set LOOSELEAF_SHARED)")
@pytest.mark.parametrize(("trace", "capacity"), CELLS, ids=[f"{t.file.split('_')[0]}-{c}" for t, c in CELLS])
def test_hits_on_a_real_trace(trace: Trace, capacity: int) -> None:
    ours, naive = 100 * hit_rate(trace, capacity), 100 * naive_hit_rate(trace, capacity)
    assert naive == pytest.approx(trace.known[capacity], abs=0.06)
    # Where prompts are larger than the pool, the naive cache serves what no pool could hold.
    assert ours == pytest.approx(naive, abs=0.1)
