"""What the pool and the queues did over time, averaged exactly, in a bounded number of rows."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Reason: TypeAlias = Literal["blocks", "seats", "budget", "arrivals"]
REASONS: tuple[Reason, ...] = ("blocks", "seats", "budget", "arrivals")
"""What kept more from running: the pool, max_num_seqs, max_num_batched_tokens, or that nobody waited."""


MEASURES = (
    "token_states",
    "reserved",
    "internal_fragmentation",
    "free",
    "cached",
    "saved_by_sharing",
    "running",
    "waiting",
    "table_blocks",
)
"""What holds during one step. The first six are slots as the step ends, before what ended gives them back (see
`looseleaf.memory.SlotUsage`); running and waiting are sequences; table_blocks the entries of all block tables."""
COLUMNS = ("seconds", *MEASURES, *(f"{reason}_seconds" for reason in REASONS))
_FIRST_REASON = 1 + len(MEASURES)


class Timeline:
    """Buckets of equal width in virtual time; when they would become too many, two become one.

    A step counts in the bucket in which it begins, with its whole duration: no step is split, so averages over any
    number of buckets are exact. The sums are formed step by step in order, however the steps are handed in.
    """

    def __init__(self, most_rows: int = 512) -> None:
        self._most_rows = most_rows
        self._width = 1.0
        self._rows: list[list[float]] = []

    def add(
        self,
        starts: NDArray[np.float64],
        seconds: NDArray[np.float64],
        measures: NDArray[np.int64],
        reasons: NDArray[np.int64],
    ) -> None:
        """Steps in a row: `measures` `[steps, len(MEASURES)]`, `reasons` as indices of `REASONS`."""
        count = len(starts)
        weighted = np.zeros((count + 1, len(COLUMNS)))
        weighted[1:, 0] = seconds
        np.multiply(seconds[:, None], measures, out=weighted[1:, 1:_FIRST_REASON])
        weighted[np.arange(1, count + 1), _FIRST_REASON + reasons] = seconds
        first = 0
        while first < count:
            row = self._row_at(float(starts[first]))
            end = (int(starts[first] // self._width) + 1) * self._width
            last = max(int(np.searchsorted(starts, end)), first + 1)
            weighted[first] = row
            row[:] = np.add.accumulate(weighted[first : last + 1])[-1].tolist()
            first = last

    @property
    def sums(self) -> dict[str, float]:
        """Seconds, and of each measure its integral over time."""
        totals = np.array(self._rows).sum(axis=0) if self._rows else np.zeros(len(COLUMNS))
        return dict(zip(COLUMNS, totals.tolist(), strict=True))

    def columns(self) -> dict[str, NDArray[np.float64]]:
        """By column name: `time` (where a bucket begins), `seconds`, averages, and seconds per reason; empty buckets
        left out."""
        table = np.array(self._rows).reshape(len(self._rows), len(COLUMNS))
        used = np.flatnonzero(table[:, 0])
        table = table[used]
        seconds = table[:, 0]
        columns = {"time": used * self._width, "seconds": seconds}
        for at, name in enumerate(MEASURES, start=1):
            columns[name] = table[:, at] / seconds
        for at, reason in enumerate(REASONS, start=_FIRST_REASON):
            columns[f"{reason}_seconds"] = table[:, at]
        return columns

    def _row_at(self, start: float) -> list[float]:
        while start >= self._width * self._most_rows:
            self._halve()
        at = int(start // self._width)
        while len(self._rows) <= at:
            self._rows.append([0.0] * len(COLUMNS))
        return self._rows[at]

    def _halve(self) -> None:
        self._width *= 2
        if len(self._rows) % 2:
            self._rows.append([0.0] * len(COLUMNS))
        pairs = zip(self._rows[::2], self._rows[1::2], strict=True)
        self._rows = [[a + b for a, b in zip(left, right, strict=True)] for left, right in pairs]
