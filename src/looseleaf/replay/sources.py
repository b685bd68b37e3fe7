"""Where a trace comes from, in a form that another process can open too and that a digest can name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from looseleaf.replay.trace import BadLines, Trace
from looseleaf.replay.trace_source import open_trace


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A file, or the description of what to generate, and how it is read."""

    text: str
    """A path, or a description such as "n=450,arrivals=poisson:10,prompt=uniform:800-1200,output=500"."""
    format: str | None = None
    columns: tuple[tuple[str, str], ...] = ()
    bad_lines: BadLines = "fatal"
    arrivals: str | None = None
    """Times that the requests get instead of their own, such as poisson:4."""
    title: str = ""
    """What it is called instead of `text`."""

    @property
    def name(self) -> str:
        return self.title or (Path(self.text).name if Path(self.text).exists() else self.text)

    def open(self) -> Trace:
        """Raises what `open_trace` raises."""
        return open_trace(
            self.text,
            format=self.format,
            columns=dict(self.columns) or None,
            bad_lines=self.bad_lines,
            arrivals=self.arrivals,
        )

    def identity(self) -> dict[str, Any]:
        """What its requests follow from: the content of the file, not its name."""
        path = Path(self.text)
        return asdict(self) | {"text": digest_of_file(path) if path.is_file() else self.text, "title": ""}


def digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, hashlib.blake2b).hexdigest()


def digest_of(values: Any) -> str:
    """32 hex digits that name plain values."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
