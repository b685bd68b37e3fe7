"""A trace by what a person types: the name of a file, or the description of one to generate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from looseleaf.replay.errors import InvalidTrace
from looseleaf.replay.generators import GeneratedTrace
from looseleaf.replay.generators.arrivals import parse_arrivals
from looseleaf.replay.retimed import retimed
from looseleaf.replay.trace import BadLines, Tokenize, Trace, read_trace


def open_trace(
    source: str | Path,
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    tokenizer: Tokenize | None = None,
    bad_lines: BadLines = "fatal",
    arrivals: str | None = None,
) -> Trace:
    """As `read_trace`; or, where no such file is there and the text has the form KEY=VALUE,…, as `parse_spec`.

    `arrivals`: gives the requests, or the sessions they belong to, other times, such as poisson:4.

    Raises `InvalidTrace` and `InvalidSpec`.
    """
    path = Path(source)
    if isinstance(source, str) and "=" in source.split(",")[0] and not path.exists():
        trace: Trace = GeneratedTrace.parse(source)
    else:
        trace = read_trace(path, format=format, columns=columns, tokenizer=tokenizer, bad_lines=bad_lines)
    return retimed(trace, parse_arrivals(arrivals)) if arrivals is not None else trace


def parse_columns(text: str) -> dict[str, str]:
    """arrival=ts,prompt=in,output=out → what column is what. Raises `InvalidTrace`."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(equals and key.strip() and name.strip() for key, equals, name in pairs):
        raise InvalidTrace(f"--columns {text!r} names no columns.", hint="Write arrival=ts,prompt=in,output=out.")
    return {key.strip(): name.strip() for key, _, name in pairs}
