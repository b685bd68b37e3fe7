"""How long prompts and outputs are: exact figures from counts, in the memory of the different lengths."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np
import polars as pl


@dataclass(frozen=True, slots=True)
class LengthSummary:
    mean: float
    least: int
    median: float
    p95: float
    p99: float
    most: int
    total: int
    histogram: list[tuple[int, int, int]]
    """(from, to, requests), by powers of two; both ends included."""


class LengthCounts:
    def __init__(self) -> None:
        self._counts = pl.DataFrame(schema={"length": pl.Int64, "count": pl.Int64})

    def add(self, lengths: pl.Series) -> None:
        new = lengths.cast(pl.Int64).alias("length").value_counts().with_columns(pl.col("count").cast(pl.Int64))
        self._counts = pl.concat([self._counts, new]).group_by("length").sum()

    def summary(self) -> LengthSummary:
        """Percentiles are interpolated between neighbours, as NumPy's."""
        table = self._counts.sort("length")
        lengths, counts = table["length"].to_numpy(), table["count"].to_numpy()
        ends = np.cumsum(counts)
        number, total = int(ends[-1]), int(lengths @ counts)

        def percentile(q: float) -> float:
            place = (number - 1) * q / 100
            low, high = (
                int(lengths[np.searchsorted(ends, rank, side="right")]) for rank in (int(place), -int(-place // 1))
            )
            return low + (high - low) * (place - floor(place))

        powers = np.frexp(lengths.astype(float))[1] - 1
        bins = [
            (1 << power, (2 << power) - 1, int(counts[powers == power].sum()))
            for power in range(int(powers[0]), int(powers[-1]) + 1)
        ]
        return LengthSummary(
            mean=total / number,
            least=int(lengths[0]),
            median=percentile(50),
            p95=percentile(95),
            p99=percentile(99),
            most=int(lengths[-1]),
            total=total,
            histogram=bins,
        )
