"""What a trace is like: lengths, burstiness, reuse, and the working set over time, from reading it once."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from looseleaf.replay.length_counts import LengthCounts, LengthSummary
from looseleaf.replay.prefix_tree import PrefixTree
from looseleaf.replay.reuse import HitRate, ReuseMeter
from looseleaf.replay.trace import Trace, TraceOrigin, requests_of

DEFAULT_BLOCK_SIZE = 16
MAX_BUCKETS = 64
MAX_TENANTS = 20


@dataclass(frozen=True, slots=True)
class Gaps:
    """Between arrivals, in seconds."""

    mean: float
    cv: float
    """Standard deviation over mean: 0 for a regular flow, 1 for a Poisson process, more for a bursty one."""
    longest: float
    peak_per_second: int
    """Most requests in a second of the clock."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A piece of the time axis."""

    start: float
    requests: int
    prompt_tokens: int
    output_tokens: int
    found_tokens: int
    """Prompt tokens that an earlier prompt began with, too."""
    working_set: int
    """Most tokens in it, of all moments of arrival."""


@dataclass(frozen=True, slots=True)
class Tenant:
    name: str
    requests: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Sessions:
    number: int
    mean_requests: float
    most_requests: int


@dataclass(frozen=True, slots=True)
class Reuse:
    block_size: int
    rates: list[HitRate]
    different_tokens: int
    """What the unbounded cache holds in the end."""


@dataclass(frozen=True, slots=True)
class Description:
    name: str
    origin: TraceOrigin
    unit: int | None
    requests: int
    duration: float
    """Seconds from the first arrival to the last."""
    prompt: LengthSummary
    output: LengthSummary
    gaps: Gaps | None
    """None where all arrive at once."""
    reuse: Reuse | None
    """None where the trace says nothing of common beginnings."""
    window: float
    """Seconds that a token stays in the working set after a use."""
    bucket_seconds: float
    buckets: list[Bucket]
    tenants: list[Tenant]
    """The largest, by tokens."""
    num_tenants: int
    sessions: Sessions | None

    def to_dict(self) -> dict[str, Any]:
        described = asdict(self)
        if self.reuse is not None:
            described["reuse"]["rates"] = {
                rate.name: {"share": rate.share, "found": rate.found, "of": rate.of, "definition": rate.definition}
                for rate in self.reuse.rates
            }
        return described


class Timeline:
    """Sums and maxima over time, in a number of buckets that never grows: when the time does, their width doubles."""

    SUMS = ("requests", "prompt_tokens", "output_tokens", "found_tokens")

    def __init__(self) -> None:
        self.width = 1.0
        self._sums = np.zeros((len(self.SUMS), 2 * MAX_BUCKETS), np.int64)
        self._peaks = np.zeros(2 * MAX_BUCKETS, np.int64)
        self._last = 0

    def add(self, arrivals: NDArray[np.float64], sums: NDArray[np.int64], peaks: NDArray[np.int64]) -> None:
        """`sums` `[len(SUMS), requests]`."""
        while arrivals[-1] >= self.width * 2 * MAX_BUCKETS:
            self._sums = np.pad(self._sums.reshape(len(self.SUMS), MAX_BUCKETS, 2).sum(2), ((0, 0), (0, MAX_BUCKETS)))
            self._peaks = np.pad(self._peaks.reshape(MAX_BUCKETS, 2).max(1), (0, MAX_BUCKETS))
            self.width *= 2
        places = (arrivals / self.width).astype(np.int64)
        for total, values in zip(self._sums, sums, strict=True):
            np.add.at(total, places, values)
        np.maximum.at(self._peaks, places, peaks)
        self._last = int(places[-1])

    def buckets(self) -> list[Bucket]:
        return [Bucket(i * self.width, *map(int, (*self._sums[:, i], self._peaks[i]))) for i in range(self._last + 1)]


class GapMeter:
    def __init__(self) -> None:
        self._last: float | None = None
        self.first = 0.0
        self._count, self._sum, self._squares, self._longest = 0, 0.0, 0.0, 0.0
        self._peak, self._second, self._in_second = 0, -1, 0

    def add(self, arrivals: NDArray[np.float64]) -> None:
        if self._last is None:
            self.first = float(arrivals[0])
        gaps = np.diff(arrivals, prepend=arrivals[0] if self._last is None else self._last)
        gaps = gaps[1:] if self._last is None else gaps
        self._last = float(arrivals[-1])
        self._count += len(gaps)
        self._sum += float(gaps.sum())
        self._squares += float(gaps @ gaps)
        self._longest = max(self._longest, float(gaps.max(initial=0)))
        seconds, counts = np.unique(np.floor(arrivals).astype(np.int64), return_counts=True)
        if seconds[0] == self._second:
            counts[0] += self._in_second
        self._peak = max(self._peak, int(counts.max()))
        self._second, self._in_second = int(seconds[-1]), int(counts[-1])

    @property
    def duration(self) -> float:
        return (self._last or 0.0) - self.first

    def gaps(self) -> Gaps | None:
        if not self._sum:
            return None
        mean = self._sum / self._count
        variance = max(self._squares / self._count - mean * mean, 0.0)
        return Gaps(mean, float(np.sqrt(variance)) / mean, self._longest, self._peak)


def describe(trace: Trace, *, block_size: int | None = None, window: float = 60.0) -> Description:
    """Read a trace once and say what it is like. `block_size`: of the hit rates; the trace's own unit, or 16."""
    prompts, outputs, gaps, timeline = LengthCounts(), LengthCounts(), GapMeter(), Timeline()
    tree, meter = PrefixTree(window), ReuseMeter(block_size or trace.unit or DEFAULT_BLOCK_SIZE)
    of_tenants: dict[str, NDArray[np.int64]] = {}
    sessions: Counter[str] = Counter()
    number, shares = 0, False
    for batch in trace.batches():
        number += len(batch)
        shares = shares or batch["run_firsts"].null_count() < len(batch)
        arrivals, prompt, output = (batch[name].to_numpy() for name in ("arrival", "prompt_tokens", "output_tokens"))
        found, peaks = np.zeros(len(batch), np.int64), np.zeros(len(batch), np.int64)
        for i, request in enumerate(requests_of(batch)):
            found[i] = tree.add(request.runs, request.prompt_tokens, request.arrival)
            peaks[i] = tree.working_set
            meter.add(request.prompt_tokens, int(found[i]))
        timeline.add(arrivals, np.stack([np.ones_like(found), prompt, output, found]), peaks)
        prompts.add(batch["prompt_tokens"])
        outputs.add(batch["output_tokens"])
        gaps.add(arrivals)
        _count_names(batch, of_tenants, sessions)
    largest = sorted(of_tenants, key=lambda name: -int(of_tenants[name][1:].sum()))[:MAX_TENANTS]
    counts = [count for name, count in sessions.items() if name]
    return Description(
        name=trace.name,
        origin=trace.origin,
        unit=trace.unit,
        requests=number,
        duration=gaps.duration,
        prompt=prompts.summary(),
        output=outputs.summary(),
        gaps=gaps.gaps(),
        reuse=Reuse(meter.block_size, meter.rates(), tree.num_tokens) if shares else None,
        window=window,
        bucket_seconds=timeline.width,
        buckets=timeline.buckets(),
        tenants=[Tenant(name, *(int(each) for each in of_tenants[name])) for name in largest],
        num_tenants=len(of_tenants),
        sessions=Sessions(len(counts), sum(counts) / len(counts), max(counts)) if counts else None,
    )


def _count_names(batch: pl.DataFrame, tenants: dict[str, NDArray[np.int64]], sessions: Counter[str]) -> None:
    sums = batch.group_by("tenant").agg(pl.len(), pl.col("prompt_tokens", "output_tokens").cast(pl.Int64).sum())
    for name, *values in sums.iter_rows():
        tenants[name] = tenants.get(name, np.zeros(3, np.int64)) + np.array(values, np.int64)
    for name, count in batch.group_by("session").len().iter_rows():
        sessions[name] += count
