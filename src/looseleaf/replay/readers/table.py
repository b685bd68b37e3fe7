"""A trace as frames in memory, or as Parquet files beside it when it is large."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import polars as pl

from looseleaf.replay.trace import Trace

BATCH = 32_768
"""Requests in a frame."""


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


def in_order(paths: Sequence[Path], folder: SpillFolder) -> list[Path]:
    """The rows of Parquet files in order of arrival, in other files of about the same size; the first are removed."""
    arrivals = pl.concat([pl.read_parquet(path, columns=["arrival"]) for path in paths])["arrival"].sort()
    marks = arrivals.gather([len(arrivals) * i // len(paths) for i in range(1, len(paths))])
    parts: list[Path] = []
    for start, end in pairwise([-float("inf"), *marks.unique().sort(), float("inf")]):
        within = (pl.col("arrival") >= start) & (pl.col("arrival") < end)
        piece = pl.concat([pl.scan_parquet(path).filter(within).collect() for path in paths])
        if len(piece):
            parts.append(folder.path / f"ordered-{len(parts)}.parquet")
            write_table(piece.sort("arrival", maintain_order=True), parts[-1])
    for path in paths:
        path.unlink()
    return parts


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
