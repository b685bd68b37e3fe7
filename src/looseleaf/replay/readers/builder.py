"""The table that a reader fills: checked, put in order, and spilled to disk when it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from looseleaf.replay.readers.bad_lines import LONGEST, BadLineCounts, why_not
from looseleaf.replay.readers.table import BATCH, SpillFolder, TableTrace, in_order, trace_name, write_table
from looseleaf.replay.trace import COLUMNS, BadLines, Runs, Trace, TraceOrigin

LARGEST_IN_MEMORY = 48 << 20
"""Bytes of frames; more goes to files, as many at a time."""
EPOCH = 1e8
"""Seconds: times from here on are counted from 1970."""
_CLOCKS = (("nanoseconds", 1e-9), ("microseconds", 1e-6), ("milliseconds", 1e-3))

TABLE = {"line": pl.Int64(), **COLUMNS}
_DEFAULTS = {"tenant": "", "priority": 0, "session": "", "num_samples": 1}


class TableBuilder:
    """Takes the requests that a reader finds, line by line or as frames, and makes a trace of them."""

    def __init__(self, path: Path, bad_lines: BadLines, *, keep: bool = True) -> None:
        """`keep`: False to check and count only."""
        self.path = path
        self._keep = keep
        self.unit: int | None = None
        self.notes: list[str] = []
        self._bad = BadLineCounts(path, bad_lines)
        self._rows: list[tuple[Any, ...]] = []
        self._runs: list[tuple[int, int, int]] = []
        self._frames: list[pl.DataFrame] = []
        self._bytes = 0
        self._spilled: list[Path] = []
        self._folder: SpillFolder | None = None
        self._num_requests = 0
        self._is_absolute = False
        self._seconds = 0.0  # per unit of the file's times; 0: not known yet
        self._earliest = np.inf
        self._latest = -np.inf
        self._late = 0
        self._first_late = 0

    def bad(self, line: int, reason: str, count: int = 1) -> None:
        """Count lines that cannot be used. Raises `InvalidTrace` where they are fatal and many."""
        self._bad.add(line, reason, count)

    def add(
        self,
        line: int,
        arrival: float,
        prompt_tokens: int,
        output_tokens: int,
        runs: Runs | None = None,
        *,
        tenant: str = "",
        priority: int = 0,
        session: str = "",
        num_samples: int = 1,
    ) -> None:
        """A request; `line` is where it stands."""
        lengths_fit = -1 <= prompt_tokens <= LONGEST and -1 <= output_tokens <= LONGEST
        if not lengths_fit or not -LONGEST <= priority <= LONGEST or not 0 < num_samples <= LONGEST:
            return self.bad(line, f"a number is below 0 or above {LONGEST:,}")
        if runs is not None:
            row = len(self._rows)
            self._runs += [(row, first, length) for first, length in runs]
        self._rows.append((line, arrival, prompt_tokens, output_tokens, tenant, priority, session, num_samples))
        if len(self._rows) >= BATCH:
            self._flush()
        return None

    def add_frame(self, frame: pl.DataFrame) -> None:
        """Requests in columns of `COLUMNS`, of which those without use may be missing, and `line`."""
        missing = [
            pl.lit(_DEFAULTS.get(name), kind).alias(name) for name, kind in TABLE.items() if name not in frame.columns
        ]
        self._take(frame.with_columns(missing).select(pl.col(name).cast(kind) for name, kind in TABLE.items()))

    def add_file(self, frames: Callable[[], Iterator[pl.DataFrame]]) -> None:
        """As `add_frame`, for a Parquet file that holds them: it is not copied unless something is wrong with it."""
        trial = TableBuilder(self.path, "skip", keep=False)
        for frame in frames():
            trial.add_frame(frame)
        if trial._bad.number or trial._late or trial._is_absolute:
            for frame in frames():
                self.add_frame(frame)
        elif trial._num_requests:
            self._num_requests = trial._num_requests
            self._spilled.append(self.path)

    def finish(self, format: str) -> Trace:
        """The trace. Raises `InvalidTrace` where a bad line is fatal, or nothing is left."""
        self._flush()
        self._bad.check(self._num_requests)
        if self._late:
            self.notes.append(
                f"Put in order of arrival: lines that come below a later one: {self._late:,}, the first is "
                f"line {self._first_late}."
            )
        parts: list[pl.DataFrame | Path] = [*self._spilled, *self._frames]
        if self._late and self._folder is None:
            parts = [pl.concat(self._frames).sort("arrival", maintain_order=True)]
        elif self._late and self._folder is not None:
            self._spill()
            parts = [*in_order(self._spilled, self._folder)]
        return TableTrace(
            name=trace_name(self.path),
            num_requests=self._num_requests,
            unit=self.unit,
            origin=TraceOrigin(format, self._bad.skipped(), tuple(self.notes)),
            parts=parts,
            beginning=float(self._earliest) if self._is_absolute else 0.0,
            folder=self._folder,
        )

    def _flush(self) -> None:
        if self._rows:
            schema = {name: kind for name, kind in TABLE.items() if not isinstance(kind, pl.List)}
            self._take(with_runs(pl.DataFrame(self._rows, schema=schema, orient="row"), self._runs))
            self._rows, self._runs = [], []

    def _take(self, frame: pl.DataFrame) -> None:
        if not self._seconds:
            self._set_clock(frame["arrival"])
        if self._seconds != 1:
            frame = frame.with_columns(pl.col("arrival") * self._seconds)
        frame = frame.with_columns(why_not(is_absolute=self._is_absolute).alias("reason"))
        wrong = frame.filter(pl.col("reason").is_not_null())
        if len(wrong):
            counts = wrong.group_by("reason", maintain_order=True).agg(pl.len(), pl.col("line").first())
            for text, count, line in counts.iter_rows():
                self.bad(line, text, count)
            frame = frame.filter(pl.col("reason").is_null())
        if len(frame):
            self._note_order(frame)
            self._num_requests += len(frame)
            if self._keep:
                self._frames.append(frame.select(list(COLUMNS)))
                self._bytes += int(self._frames[-1].estimated_size())
            if self._bytes > LARGEST_IN_MEMORY:
                self._spill()

    def _set_clock(self, arrivals: pl.Series) -> None:
        """Times may be seconds since 1970, too, or what is shorter than a second."""
        known = arrivals.drop_nulls()
        first = float(known[0]) if len(known) else 0.0
        self._is_absolute, self._seconds = EPOCH <= first < float("inf"), 1.0
        for unit, seconds in _CLOCKS:
            if EPOCH <= first * seconds < float("inf"):
                self._seconds = seconds
                self.notes.append(f"Times were read as {unit} since 1970.")
                break

    def _note_order(self, frame: pl.DataFrame) -> None:
        arrivals = frame["arrival"].to_numpy()
        before = np.maximum.accumulate(np.concatenate(([self._latest], arrivals[:-1])))
        late = np.flatnonzero(arrivals < before)
        if len(late) and not self._late:
            self._first_late = int(frame["line"][int(late[0])])
        self._late += len(late)
        self._latest = max(float(before[-1]), float(arrivals[-1]))
        self._earliest = min(self._earliest, float(arrivals.min()))

    def _spill(self) -> None:
        if not self._frames:
            return
        self._folder = self._folder or SpillFolder()
        path = self._folder.path / f"{len(self._spilled)}.parquet"
        write_table(pl.concat(self._frames), path)
        self._spilled.append(path)
        self._frames, self._bytes = [], 0


def with_runs(rows: pl.DataFrame, runs: list[tuple[int, int, int]]) -> pl.DataFrame:
    """`rows` with the runs (row, first id, length), given in the order of the rows."""
    flat = pl.DataFrame(runs, schema=dict.fromkeys(("row", "run_firsts", "run_lengths"), pl.Int32()), orient="row")
    lists = flat.group_by("row", maintain_order=True).agg("run_firsts", "run_lengths")
    indexed = rows.with_row_index("row").with_columns(pl.col("row").cast(pl.Int32))
    return indexed.join(lists, on="row", how="left", maintain_order="left").select(list(TABLE))
