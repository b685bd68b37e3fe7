"""The table a reader fills: checked, put in order, and spilled to disk when it grows."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from looseleaf.replay.errors import InvalidTrace
from looseleaf.replay.trace import COLUMNS, BadLines, Runs, SkippedLines, Trace, TraceOrigin

BATCH = 32_768
"""Requests in a frame."""
LARGEST_IN_MEMORY = 48 << 20
"""Bytes of frames; more goes to files, as many at a time."""
LONGEST = 2**31 - 1
"""Tokens of a request."""
EPOCH = 1e8
"""Seconds: times from here on are counted from 1970."""
_CLOCKS = (("nanoseconds", 1e-9), ("microseconds", 1e-6), ("milliseconds", 1e-3))
ENOUGH = 1000
"""Bad lines after which a reading that they end does not go on."""

TABLE = {"line": pl.Int64(), **COLUMNS}
_DEFAULTS = {"tenant": "", "priority": 0, "session": "", "num_samples": 1}


class SpillFolder:
    """A folder for what does not fit into memory. It goes with this object."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="looseleaf-trace-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(eq=False)
class TableTrace(Trace):
    """A trace in frames, or in Parquet files with the columns of one."""

    parts: list[pl.DataFrame | Path]
    beginning: float = field(default=0.0, kw_only=True)
    """Where the times in the parts begin."""
    folder: SpillFolder | None = field(default=None, kw_only=True)
    """Where the files are, if they are ours."""

    def batches(self) -> Iterator[pl.DataFrame]:
        for part in self.parts:
            for frame in part.iter_slices(BATCH) if isinstance(part, pl.DataFrame) else frames_of(part):
                yield frame.with_columns(pl.col("arrival") - self.beginning) if self.beginning else frame


def frames_of(path: Path) -> Iterator[pl.DataFrame]:
    """A Parquet file in pieces of one row group or less."""
    lazy = pl.scan_parquet(path)
    for frame in lazy.collect_batches(chunk_size=BATCH, maintain_order=True):
        yield from frame.iter_slices(BATCH)


class TableBuilder:
    """Takes the requests that a reader finds, line by line or as frames, and makes a trace of them."""

    def __init__(self, path: Path, bad_lines: BadLines, *, keep: bool = True) -> None:
        """`keep`: False to check and count only."""
        self.path = path
        self._keep = keep
        self.unit: int | None = None
        self.notes: list[str] = []
        self._fatal = bad_lines == "fatal"
        self._bad: dict[str, SkippedLines] = {}
        self._num_bad = 0
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
        known = self._bad.get(reason)
        self._bad[reason] = SkippedLines(
            reason, known.count + count if known else count, known.first_line if known else line
        )
        self._num_bad += count
        if self._fatal and self._num_bad >= ENOUGH:
            raise self._refusal(f"at least {self._num_bad:,} lines")

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
        if trial._num_bad or trial._late or trial._seconds != 1:
            for frame in frames():
                self.add_frame(frame)
        elif trial._num_requests:
            self._num_requests = trial._num_requests
            self._spilled.append(self.path)

    def finish(self, format: str) -> Trace:
        """The trace. Raises `InvalidTrace` where a bad line is fatal, or nothing is left."""
        self._flush()
        if self._num_bad and self._fatal:
            raise self._refusal(f"{self._num_bad:,} of {self._num_bad + self._num_requests:,} requests")
        if not self._num_requests:
            skipped = f": all {self._num_bad:,} lines were skipped ({self._reasons()})" if self._num_bad else ""
            raise InvalidTrace(f"{self.path} holds no request{skipped}.", hint="Check the file and its format.")
        if self._late:
            self.notes.append(
                f"Put in order of arrival: lines that come below a later one: {self._late:,}, the first is "
                f"line {self._first_late}."
            )
        parts: list[pl.DataFrame | Path] = [*self._spilled, *self._frames]
        if self._late:
            parts = self._in_order()
        return TableTrace(
            name=trace_name(self.path),
            num_requests=self._num_requests,
            unit=self.unit,
            origin=TraceOrigin(format, tuple(self._bad.values()), tuple(self.notes)),
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
        frame = frame.with_columns(self._reason().alias("reason"))
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

    def _reason(self) -> pl.Expr:
        """Why a row cannot be used; null where it can."""
        arrival, prompt, output = pl.col("arrival"), pl.col("prompt_tokens"), pl.col("output_tokens")
        runs, samples, firsts = pl.col("run_lengths"), pl.col("num_samples"), pl.col("run_firsts")
        is_early = (arrival < 0) & (not self._is_absolute)
        total = prompt.cast(pl.Int64) + samples.cast(pl.Int64) * output
        return (
            pl.when(arrival.is_null() | ~arrival.is_finite()).then(pl.lit("the arrival is no time"))
            .when(is_early).then(pl.lit("the arrival is before the beginning of the trace"))
            .when(prompt.is_null() | (prompt < 0)).then(pl.lit("the number of prompt tokens is missing or negative"))
            .when(prompt == 0).then(pl.lit("the prompt has no tokens"))
            .when(output.is_null() | (output < 0)).then(pl.lit("the number of output tokens is missing or negative"))
            .when(output == 0).then(pl.lit("the output has no tokens"))
            .when(samples.is_null() | (samples < 1)).then(pl.lit("the number of samples is below 1"))
            .when(total > LONGEST).then(pl.lit(f"prompt and outputs are longer than {LONGEST:,} tokens"))
            .when((runs.list.sum() != prompt) | (runs.list.min() < 1)).then(pl.lit("the runs are not its length"))
            .when((firsts.list.min() < 0) | (firsts.list.len() != runs.list.len())).then(pl.lit("an id is negative"))
        )  # fmt: skip

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

    def _in_order(self) -> list[pl.DataFrame | Path]:
        if self._folder is None:
            return [pl.concat(self._frames).sort("arrival", maintain_order=True)]
        self._spill()
        # Each piece of the time axis holds about as much as one file.
        arrivals = pl.concat([pl.read_parquet(path, columns=["arrival"]) for path in self._spilled])["arrival"].sort()
        marks = arrivals.gather([len(arrivals) * i // len(self._spilled) for i in range(1, len(self._spilled))])
        edges = [-np.inf, *marks.unique().sort(), np.inf]
        parts: list[pl.DataFrame | Path] = []
        for index, (start, end) in enumerate(pairwise(edges)):
            within = (pl.col("arrival") >= start) & (pl.col("arrival") < end)
            piece = pl.concat([pl.scan_parquet(path).filter(within).collect() for path in self._spilled])
            if len(piece):
                part = self._folder.path / f"ordered-{index}.parquet"
                write_table(piece.sort("arrival", maintain_order=True), part)
                parts.append(part)
        for path in self._spilled:
            path.unlink()
        return parts

    def _refusal(self, how_many: str) -> InvalidTrace:
        return InvalidTrace(
            f"{self.path}: {how_many} cannot be used: {self._reasons()}.",
            hint="Mend the file, or leave such lines out with --bad-lines skip.",
        )

    def _reasons(self) -> str:
        ranked = sorted(self._bad.values(), key=lambda each: -each.count)
        shown = [f"{each.reason} ({each.count:,}, the first in line {each.first_line})" for each in ranked[:4]]
        return "; ".join([*shown, f"and {len(ranked) - 4} more reasons"] if len(ranked) > 4 else shown)


def with_runs(rows: pl.DataFrame, runs: list[tuple[int, int, int]]) -> pl.DataFrame:
    """`rows` with the runs (row, first id, length), given in the order of the rows."""
    flat = pl.DataFrame(runs, schema=dict.fromkeys(("row", "run_firsts", "run_lengths"), pl.Int32()), orient="row")
    lists = flat.group_by("row", maintain_order=True).agg("run_firsts", "run_lengths")
    indexed = rows.with_row_index("row").with_columns(pl.col("row").cast(pl.Int32))
    return indexed.join(lists, on="row", how="left", maintain_order="left").select(list(TABLE))


def write_table(frame: pl.DataFrame, path: Path) -> None:
    frame.write_parquet(path, compression="zstd", row_group_size=BATCH)


def trace_name(path: Path) -> str:
    """The file's name without what says how it is packed: azure2023_conv_full.jsonl.gz → azure2023_conv_full."""
    name = path.name
    for _ in range(2):
        stem, dot, suffix = name.rpartition(".")
        if stem and dot and suffix.lower() in {"gz", "zst", "jsonl", "json", "csv", "parquet", "ndjson"}:
            name = stem
    return name
