"""CSV with a header and one request a line: Azure's, BurstGPT's, or any whose columns are named."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import polars as pl

from looseleaf.replay.errors import InvalidTrace
from looseleaf.replay.readers.builder import TableBuilder
from looseleaf.replay.readers.columns import AZURE, BURSTGPT, as_table, checked_columns, is_complete, known_columns
from looseleaf.replay.readers.head import Head
from looseleaf.replay.readers.source import LONGEST_LINE, open_source, read_head

CHUNK = 4 << 20
MOST_QUOTED_BREAKS = 64
"""In a text within quotes, at the end of a chunk."""


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
        source.readline(LONGEST_LINE)
        number, rest = 2, b""
        while data := source.read(CHUNK):
            whole, rest = _split(rest + data)
            if len(rest) > LONGEST_LINE:
                raise InvalidTrace(f"Line {number} of {path} is longer than {LONGEST_LINE >> 20} MiB.")
            if whole:
                yield from _numbered(whole, number)
                number += whole.count(b"\n") + 1
        yield from _numbered(rest.removesuffix(b"\n"), number)


def _numbered(whole: bytes, number: int) -> Iterator[tuple[bytes, np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """Lines, of which the first has this number, without empty ones."""
    if whole and b"\n\n" not in whole and b"\n\r" not in whole and whole[:1] not in b"\r\n":
        yield whole, number + np.arange(whole.count(b"\n") + 1)
        return
    lines = {i: line for i, line in enumerate(whole.split(b"\n"), number) if line.strip()}
    if lines:
        yield b"\n".join(lines.values()), np.fromiter(lines, np.int64)


def _split(data: bytes) -> tuple[bytes, bytes]:
    """Whole lines, without the last line break, and what is left over."""
    last = end = data.rfind(b"\n")
    if data.count(b'"', 0, max(end, 0)) % 2:  # it may stand in a quoted text that began before
        for _ in range(MOST_QUOTED_BREAKS):
            end = data.rfind(b"\n", 0, end)
            if end < 0 or not data.count(b'"', 0, end) % 2:
                break
        else:
            end = last
    return (data[:end], data[end + 1 :]) if end > 0 else (b"", data)


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
