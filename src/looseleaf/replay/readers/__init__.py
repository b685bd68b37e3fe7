"""Trace files of every known format; which one a file has is told by its content."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from looseleaf.replay.errors import InvalidTrace
from looseleaf.replay.readers.benchmark import Benchmark
from looseleaf.replay.readers.builder import TableBuilder
from looseleaf.replay.readers.csv_lines import Csv, azure, burstgpt
from looseleaf.replay.readers.head import Head
from looseleaf.replay.readers.parquet import Parquet
from looseleaf.replay.readers.request_lines import RequestLines
from looseleaf.replay.readers.request_log import RequestLog
from looseleaf.replay.readers.sessions import Sessions
from looseleaf.replay.readers.sharegpt import ShareGpt
from looseleaf.replay.readers.source import read_head
from looseleaf.replay.trace import BadLines, Tokenize, Trace


class Reader(Protocol):
    format: str

    def recognises(self, head: Head) -> bool: ...

    def read(self, path: Path, table: TableBuilder) -> None:
        """Put every request of the file into the table. Raises `InvalidTrace`."""


def read(
    path: Path,
    *,
    format: str | None,
    columns: Mapping[str, str] | None,
    tokenizer: Tokenize | None,
    bad_lines: BadLines,
) -> Trace:
    """As `looseleaf.replay.trace.read_trace`."""
    lowered = columns and {meaning: name.strip().lower() for meaning, name in columns.items()}
    readers: list[Reader] = [
        Parquet(columns),
        RequestLines(),
        Sessions(),
        Benchmark(),
        ShareGpt(tokenizer),
        ShareGpt(tokenizer, turns="all"),
        RequestLog(tokenizer),
        *([] if columns else [azure(), burstgpt()]),
        Csv("csv", lowered),
    ]
    reader = choose(readers, path, format)
    table = TableBuilder(path, bad_lines)
    reader.read(path, table)
    return table.finish(reader.format)


def choose(readers: list[Reader], path: Path, format: str | None) -> Reader:
    known = ", ".join(reader.format for reader in readers)
    if format is not None:
        for reader in readers:
            if reader.format == format:
                return reader
        raise InvalidTrace(f"There is no trace format {format!r}.", hint=f"Choose one of {known}.")
    head = Head(read_head(path))
    if not head.text:
        raise InvalidTrace(f"{path} is empty.", hint="A trace has at least one request.")
    for reader in readers:
        if reader.recognises(head):
            return reader
    raise InvalidTrace(
        f"{path} has none of the known formats. It begins with {head.first_line[:60]!r}.",
        hint=f"Known are {known}. For other CSV files name the columns: --columns arrival=…,prompt=…,output=….",
    )
