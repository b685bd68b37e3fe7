"""A trace's requests at other times: drawn ones, instead of those of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from looseleaf.replay.generators.arrivals import Arrivals
from looseleaf.replay.readers.builder import TableBuilder
from looseleaf.replay.trace import Trace

SESSIONS = 4_096
"""Beginnings drawn at once."""


def retimed(trace: Trace, arrivals: Arrivals, seed: int = 0) -> Trace:
    """The requests in their order, at drawn times. Where they belong to sessions, their sessions begin at drawn times,
    in the order of their beginnings, and go on as they did."""
    first = next(trace.batches(), None)
    if first is None or (first["session"] == "").any():
        return _Retimed(trace, arrivals, seed)
    builder = TableBuilder(Path(trace.name), "fatal")
    builder.unit = trace.unit
    shifts = _Shifts(arrivals, seed)
    for batch in trace.batches():
        builder.add_frame(batch.with_row_index("line").with_columns(shifts.of(batch)))
    moved = builder.finish(trace.origin.format)
    note = "The times are not the trace's own: when its sessions begin was drawn for this reading."
    moved.name, moved.origin = trace.name, replace(trace.origin, notes=(*trace.origin.notes, note))
    return moved


class _Retimed(Trace):
    def __init__(self, trace: Trace, arrivals: Arrivals, seed: int) -> None:
        note = "The times are not the trace's own: they were drawn for this reading."
        origin = replace(trace.origin, notes=(*trace.origin.notes, note))
        super().__init__(name=trace.name, num_requests=trace.num_requests, unit=trace.unit, origin=origin)
        self._trace, self._arrivals, self._seed = trace, arrivals, seed

    def batches(self) -> Iterator[pl.DataFrame]:
        clock = self._arrivals.clock(np.random.default_rng(self._seed))
        for batch in self._trace.batches():
            yield batch.with_columns(pl.Series("arrival", clock(len(batch))))


class _Shifts:
    """By how much each session's times move."""

    def __init__(self, arrivals: Arrivals, seed: int) -> None:
        self._clock = arrivals.clock(np.random.default_rng(seed))
        self._starts: list[float] = []
        self._shifts: dict[str, float] = {}

    def of(self, batch: pl.DataFrame) -> pl.Series:
        """New arrivals."""
        moved = []
        for session, arrival in zip(batch["session"].to_list(), batch["arrival"].to_list(), strict=True):
            shift = self._shifts.get(session)
            if shift is None:
                if not self._starts:
                    self._starts = self._clock(SESSIONS)[::-1].tolist()
                shift = self._shifts[session] = self._starts.pop() - arrival
            moved.append(max(arrival + shift, 0.0))
        return pl.Series("arrival", moved, dtype=pl.Float64)
