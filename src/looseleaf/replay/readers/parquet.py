"""Parquet: the table of a trace as it is, or any whose columns are named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import polars as pl
from polars.io.plugins import register_io_source

from looseleaf.replay.errors import InvalidTrace
from looseleaf.replay.readers.builder import TableBuilder
from looseleaf.replay.readers.columns import as_table, checked_columns, known_columns
from looseleaf.replay.readers.head import Head
from looseleaf.replay.readers.table import BATCH, frames_of
from looseleaf.replay.trace import COLUMNS, Trace

KEY = "looseleaf.trace"


class Parquet:
    format = "parquet"

    def __init__(self, columns: Mapping[str, str] | None) -> None:
        self._columns = columns

    def recognises(self, head: Head) -> bool:
        return head.data.startswith(b"PAR1")

    def read(self, path: Path, table: TableBuilder) -> None:
        try:
            schema = pl.read_parquet_schema(path)
            if schema.keys() >= COLUMNS.keys() and self._columns is None:
                _read_own(path, table)
                return
            lower = {name.lower(): name for name in schema}
            columns = checked_columns(self._columns or known_columns(lower), schema)
            for frame in _numbered(path):
                table.add_frame(as_table(frame, columns))
        except (pl.exceptions.PolarsError, OSError) as error:
            raise InvalidTrace(f"{path} is no Parquet file of requests: {str(error).splitlines()[0]}") from error


def _read_own(path: Path, table: TableBuilder) -> None:
    about = json.loads(pl.read_parquet_metadata(path).get(KEY, "{}"))
    table.unit = about.get("unit")
    table.notes += about.get("notes", [])
    table.add_file(partial(_numbered, path))


def _numbered(path: Path) -> Iterator[pl.DataFrame]:
    line = 1
    for frame in frames_of(path):
        yield frame.with_row_index("line", line)
        line += len(frame)


def write_parquet(trace: Trace, path: Path) -> None:
    """Write a trace batch by batch; `path` is there only when it is whole. Raises `InvalidTrace`."""
    about = {"unit": trace.unit, "format": trace.origin.format, "notes": list(trace.origin.notes)}

    def batches(
        _columns: list[str] | None, _predicate: pl.Expr | None, _rows: int | None, _size: int | None
    ) -> Iterator[pl.DataFrame]:
        yield from trace.batches()

    partial_path = path.with_name(path.name + ".partial")
    try:
        source = register_io_source(batches, schema=pl.Schema(COLUMNS), is_pure=True)
        source.sink_parquet(partial_path, compression="zstd", row_group_size=BATCH, metadata={KEY: json.dumps(about)})
        partial_path.replace(path)
    except OSError as error:
        raise InvalidTrace(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        partial_path.unlink(missing_ok=True)
