"""The beginning of a file, as far as it takes to tell what format it has."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Head:
    data: bytes
    """The first bytes, unpacked."""

    @cached_property
    def text(self) -> bytes:
        return self.data.removeprefix(b"\xef\xbb\xbf").lstrip()

    @cached_property
    def first_line(self) -> bytes:
        return self.text.split(b"\n", 1)[0].strip()

    @cached_property
    def record(self) -> dict[str, Any]:
        """The first line, if it is a JSON object; its keys alone are known where it is longer than the head."""
        try:
            found = json.loads(self.first_line)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @cached_property
    def separator(self) -> str:
        """Of a CSV file's columns."""
        return max(",;\t", key=lambda each: self.first_line.count(each.encode()))

    @cached_property
    def header(self) -> tuple[str, ...]:
        """The first line, if it may be the names of columns; in lower case."""
        if self.text.startswith((b"{", b"[")):
            return ()
        try:
            row = next(csv.reader([self.first_line.decode()], delimiter=self.separator), [])
        except (UnicodeDecodeError, csv.Error):
            return ()
        return tuple(name.strip().lower() for name in row) if len(row) > 1 else ()
