"""CSV with a header and one request a line: Azure's, BurstGPT's, or any whose columns are named."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import polars as pl

from looseleaf.replay.errors import InvalidTrace
from looseleaf.replay.readers.columns import AZURE, BURSTGPT, as_table, checked_columns, is_complete, known_columns
from looseleaf.replay.readers.head import Head
from looseleaf.replay.readers.source import open_source, read_head
from looseleaf.replay.readers.table import TableBuilder

CHUNK = 4 << 20


class Csv:
    """One of the known tables, or with `columns` any."""

    def __init__(self, format: str, columns: Mapping[str, str] | None) -> None:
        self.format = format
        self._columns = columns

    def recognises(self, head: Head) -> bool:
        if self.format == "csv":
            return bool(head.header) and (self._columns is not None or is_complete(known_columns(head.header)))
        return set((self._columns or {}).values()) <= set(head.header)

    def read(self, path: Path, table: TableBuilder) -> None:
        head = Head(read_head(path))
        names = head.header
        if not names:
            raise InvalidTrace(f"{path} has no header: its first line must name the columns of a CSV file.")
        columns = checked_columns(self._columns or known_columns(names), names)
        if self.format == "burstgpt" and "session id" in names:
            columns["session"] = "session id"
        for chunk, lines in chunks_of(path):
            frame = _parse(path, chunk, _unique(names), head.separator)
            if len(frame) != len(lines):  # quoted line breaks: rows are counted instead of lines
                lines = np.arange(len(frame)) + lines[0]
            table.add_frame(as_table(frame.with_columns(pl.Series("line", lines)), columns))


def azure() -> Csv:
    return Csv("azure", AZURE)


def burstgpt() -> Csv:
    return Csv("burstgpt", BURSTGPT)


def chunks_of(path: Path) -> Iterator[tuple[bytes, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """The lines after the header in pieces, without empty ones, and the number of each."""
    with open_source(path) as source:
        source.readline()
        number, rest = 2, b""
        while True:
            data = source.read(CHUNK)
            whole, rest = _split(rest + data, last=not data)
            lines = whole.split(b"\n")
            numbers = [number + i for i, line in enumerate(lines) if line.strip()]
            if numbers:
                kept = whole if len(numbers) == len(lines) else b"\n".join(line for line in lines if line.strip())
                yield kept, np.array(numbers, np.int64)
            number += whole.count(b"\n") + 1
            if not data:
                return


def _split(data: bytes, *, last: bool) -> tuple[bytes, bytes]:
    """Whole lines, without the last line break, and what is left over."""
    if last:
        return data.removesuffix(b"\n"), b""
    end = data.rfind(b"\n")
    while end >= 0 and data.count(b'"', 0, end) % 2:  # within quotes
        end = data.rfind(b"\n", 0, end)
    return (data[:end], data[end + 1 :]) if end >= 0 else (b"", data)


def _parse(path: Path, chunk: bytes, names: list[str], separator: str) -> pl.DataFrame:
    try:
        return pl.read_csv(
            io.BytesIO(chunk),
            has_header=False,
            schema=dict.fromkeys(names, pl.String()),
            separator=separator,
            encoding="utf8-lossy",
            truncate_ragged_lines=True,
        )
    except pl.exceptions.PolarsError as error:
        raise InvalidTrace(f"{path} is no CSV file: {str(error).splitlines()[0]}") from error


def _unique(names: tuple[str, ...]) -> list[str]:
    return [name if names.index(name) == i and name != "line" else f"{name}#{i}" for i, name in enumerate(names)]
