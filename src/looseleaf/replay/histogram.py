"""A distribution in flat memory: percentiles of any number of values, each within half a percent."""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

RELATIVE_ERROR = 0.005
"""Of a percentile, whatever the values are."""
SMALLEST = 1e-6
"""Values below count as 0. In seconds, a microsecond."""
LARGEST = 1e9

_GROWTH = math.log((1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR))
_NUM_BINS = math.ceil(math.log(LARGEST / SMALLEST) / _GROWTH) + 2
_BOUNDS_ARRAY: NDArray[np.float64] = SMALLEST * np.exp(_GROWTH * np.arange(_NUM_BINS - 1))
_BOUNDS = _BOUNDS_ARRAY.tolist()
"""Upper ends of all bins but the last."""


class LogHistogram:
    """Counts in bins whose bounds grow by a fixed ratio, as in DDSketch (Masson et al., VLDB 2019); mean, smallest and
    largest value are exact."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.smallest = math.inf
        self.largest = -math.inf
        self._bins: NDArray[np.int64] = np.zeros(_NUM_BINS, np.int64)

    def add(self, value: float, count: int = 1) -> None:
        """`count` times a value that is at least 0."""
        self.count += count
        self.total += value * count
        if value < self.smallest:
            self.smallest = value
        if value > self.largest:
            self.largest = value
        self._bins[bisect_left(_BOUNDS, value)] += count

    def add_all(self, values: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        """Each of the values as often as its count says, to the bit what `add` makes of them one by one."""
        some = counts > 0
        values, counts = values[some], counts[some]
        if not len(values):
            return
        self.count += int(counts.sum())
        self.total = float(np.add.accumulate(np.concatenate([[self.total], values * counts]))[-1])
        self.smallest = min(self.smallest, float(values.min()))
        self.largest = max(self.largest, float(values.max()))
        np.add.at(self._bins, np.searchsorted(_BOUNDS_ARRAY, values), counts)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    def percentile(self, percent: float) -> float:
        """The value that `percent` of all do not exceed; NaN when there are none."""
        if not self.count:
            return math.nan
        rank = max(1, math.ceil(percent / 100 * self.count))
        at = int(np.searchsorted(np.cumsum(self._bins), rank))
        middle = 0.0 if at == 0 else SMALLEST * math.exp((at - 0.5) * _GROWTH)
        return min(max(middle, self.smallest), self.largest)

    def share_up_to(self, value: float) -> float:
        """Share of the values that do not exceed `value`, to the bin; NaN when there are none."""
        if not self.count:
            return math.nan
        return float(self._bins[: bisect_left(_BOUNDS, value) + 1].sum() / self.count)
