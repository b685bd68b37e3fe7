"""A histogram that may be told of every token: one bisection, no lock, no label lookup."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.utils import floatToGoString


class Histogram:
    """For one thread. (prometheus-client's own takes a lock and walks through its buckets.)"""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: upper, inclusive, ascending; the last bucket, without one, is added."""
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def sum(self) -> float:
        return self._sum

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound as Prometheus writes it, cumulative count)."""
        bounds = [floatToGoString(bound) for bound in self._bounds]  # type: ignore[no-untyped-call]
        return list(zip([*bounds, "+Inf"], accumulate(self._counts), strict=True))


def steps_1_2_5(most: int) -> list[float]:
    """1, 2, 5, 10, 20, … up to `most`, at least 1."""
    bounds: list[float] = []
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > max(most, 1):
                return bounds
            bounds.append(float(digit * power))
        power *= 10
