"""What is said of a trace: against naive counts, and against what is known of public traces."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.replay.describe import MAX_BUCKETS, Description, GapMeter, Timeline, describe
from looseleaf.replay.generators import GeneratedTrace
from looseleaf.replay.length_counts import LengthCounts
from looseleaf.replay.prefix_tree import PrefixTree
from looseleaf.replay.reuse import ReuseMeter
from looseleaf.replay.trace import COLUMNS, Runs, Trace, TraceOrigin, read_trace

TRACES = Path(os.environ.get("LOOSELEAF_SHARED", Path(__file__).parents[3] / "shared")) / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="request traces not found (set LOOSELEAF_SHARED)")

prompts = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=10), min_size=1, max_size=14)
"""Each token is an id by itself, so that runs lie next to one another in every way."""


def in_runs(ids: Sequence[int], cuts: int) -> Runs:
    """Ids as runs, as long as they can be where `cuts` is 0."""
    runs: list[tuple[int, int]] = []
    for i, each in enumerate(ids):
        if runs and each == sum(runs[-1]) and not (cuts >> i) & 1:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((each, 1))
    return tuple(runs)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=60, deadline=None)
@given(prompts=prompts, cuts=st.integers(0, 2**10 - 1), gaps=st.lists(st.integers(0, 3), min_size=14, max_size=14))
def test_the_tree_finds_what_a_search_finds(prompts: list[list[int]], cuts: int, gaps: list[int]) -> None:
    tree, now, window = PrefixTree(window=4), 0.0, 4.0
    uses: list[tuple[float, set[tuple[int, ...]]]] = []
    for ids, gap in zip(prompts, gaps, strict=False):
        now += gap
        found = tree.add(in_runs(ids, cuts), len(ids), now)
        assert found == max((common(ids, earlier) for earlier, _ in zip(prompts, uses, strict=False)), default=0)
        uses.append((now, {tuple(ids[: i + 1]) for i in range(len(ids))}))
        assert tree.num_tokens == len(set.union(*(tokens for _, tokens in uses)))
        assert tree.working_set == len(set.union(*(tokens for at, tokens in uses if at >= now - window)))


def test_prompts_that_share_nothing() -> None:
    tree = PrefixTree(window=10)
    assert [tree.add(None, 5, now) for now in (0.0, 1.0, 20.0)] == [0, 0, 0]
    assert (tree.num_tokens, tree.working_set) == (15, 5)


def test_every_definition_of_a_hit_rate() -> None:
    meter = ReuseMeter(block_size=4)
    for prompt, found in ((10, 0), (10, 10), (9, 6), (8, 8)):
        meter.add(prompt, found)
    counts = {rate.name: (rate.found, rate.of) for rate in meter.rates()}
    assert counts == {
        "tokens_full_blocks": (4 * (0 + 2 + 1 + 1), 37),
        "tokens_full_blocks_last": (4 * (0 + 2 + 1 + 2), 37),
        "tokens": (0 + 9 + 6 + 7, 37),
        "tokens_last": (0 + 10 + 6 + 8, 37),
        "blocks": (0 + 2 + 1 + 1, 8),
        "blocks_last": (0 + 2 + 1 + 2, 8),
        "blocks_partial": (0 + 3 + 1 + 2, 11),
    }


@settings(max_examples=25, deadline=None)
@given(batches=st.lists(st.lists(st.integers(1, 3000), min_size=1, max_size=30), min_size=1, max_size=4))
def test_lengths_are_exact(batches: list[list[int]]) -> None:
    counts = LengthCounts()
    for batch in batches:
        counts.add(pl.Series(batch, dtype=pl.Int32))
    values, found = np.concatenate(batches), counts.summary()
    assert (found.least, found.most, found.total) == (values.min(), values.max(), values.sum())
    expected = (values.mean(), *np.percentile(values, [50, 95, 99]))
    assert (found.mean, found.median, found.p95, found.p99) == pytest.approx(expected)
    assert sum(count for _, _, count in found.histogram) == len(values)
    for low, high, count in found.histogram:
        assert count == ((values >= low) & (values <= high)).sum()


@settings(max_examples=40, deadline=None)
@given(times=st.lists(st.floats(0, 500), min_size=2, max_size=60), cut=st.integers(1, 59))
def test_gaps(times: list[float], cut: int) -> None:
    arrivals, meter = np.sort(times), GapMeter()
    for piece in (arrivals[:cut], arrivals[cut:]):
        if len(piece):
            meter.add(piece)
    gaps, found = np.diff(arrivals), meter.gaps()
    if not gaps.sum():
        assert found is None
        return
    assert found is not None
    assert meter.duration == pytest.approx(gaps.sum())
    assert (found.mean, found.longest) == pytest.approx((gaps.mean(), gaps.max()))
    assert found.cv == pytest.approx(gaps.std() / gaps.mean(), abs=1e-6)
    assert found.peak_per_second == np.unique(np.floor(arrivals), return_counts=True)[1].max()


@settings(max_examples=40, deadline=None)
@given(times=st.lists(st.floats(0, 1e7), min_size=1, max_size=50))
def test_a_timeline_loses_nothing_however_long_it_is(times: list[float]) -> None:
    timeline, arrivals = Timeline(), np.sort(times)
    peaks = np.arange(1, len(arrivals) + 1)
    for i in range(0, len(arrivals), 7):
        piece = slice(i, i + 7)
        timeline.add(arrivals[piece], np.tile(peaks[piece], (4, 1)), peaks[piece])
    buckets = timeline.buckets()
    assert len(buckets) <= 2 * MAX_BUCKETS
    assert sum(bucket.prompt_tokens for bucket in buckets) == peaks.sum()
    for bucket in buckets:
        inside = peaks[(arrivals >= bucket.start) & (arrivals < bucket.start + timeline.width)]
        assert (bucket.requests, bucket.working_set) == (inside.sum(), inside.max(initial=0))


class Listed(Trace):
    """A trace of given rows, in batches of nine."""

    def __init__(self, rows: pl.DataFrame) -> None:
        super().__init__("listed", len(rows), None, origin=TraceOrigin("listed"))
        self._rows = rows

    def batches(self) -> Iterator[pl.DataFrame]:
        return self._rows.iter_slices(9)


@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 99))
def test_batches_do_not_matter(seed: int) -> None:
    trace = GeneratedTrace.parse(
        f"n=40,arrivals=poisson:2,prompt=uniform:1-40,output=uniform:1-9,system=16x2,turns=2,tenants=2,seed={seed}"
    )
    whole, single = describe(trace), describe(Listed(pl.concat(trace.batches())))
    for field in ("requests", "prompt", "output", "reuse", "buckets", "tenants", "num_tenants", "sessions"):
        assert getattr(single, field) == getattr(whole, field)
    assert single.duration == pytest.approx(whole.duration)


def test_all_at_once() -> None:
    found = describe(GeneratedTrace.parse("n=5,prompt=3,output=4"))
    assert (found.gaps, found.duration, found.reuse, found.sessions) == (None, 0.0, None, None)
    assert [(b.requests, b.working_set) for b in found.buckets] == [(5, 15)]


def described(name: str, **options: int) -> Description:
    return describe(read_trace(TRACES / f"{name}.jsonl.gz"), **options)  # type: ignore[arg-type]


@needs_traces
def test_known_burstiness() -> None:
    gaps = described("azure2023_code_full").gaps
    assert gaps is not None
    assert gaps.cv == pytest.approx(13.2, abs=0.06)


@needs_traces
@pytest.mark.parametrize(
    ("name", "known"), [("mooncake_conversation_first1000", 21.6), ("miniswe_bs16", 93.4), ("ragpulse_full", None)]
)
def test_known_reuse(name: str, known: float | None) -> None:
    reuse = described(name).reuse
    assert reuse is not None
    shares = [100 * rate.share for rate in reuse.rates]
    assert known is None or shares[0] == pytest.approx(known, abs=0.06)
    assert shares[0] <= shares[1] <= shares[3]
    assert shares[0] <= shares[2] <= shares[3]


@needs_traces
def test_tenants_and_sessions_of_public_traces() -> None:
    found = described("lmsys_arena_vtc_full")
    assert found.num_tenants == 27
    assert sum(each.requests for each in found.tenants) <= found.requests == 1500
    sessions = described("weka_40_sessions_le131k").sessions
    assert sessions is not None
    assert sessions.number == 40


def test_columns_are_what_batches_have() -> None:
    batch = next(GeneratedTrace.parse("n=5,prompt=3,output=4,system=2").batches())
    assert dict(batch.schema) == dict(COLUMNS)
