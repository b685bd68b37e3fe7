"""Tables of any columns: which of them mean what, and their texts as numbers and times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import polars as pl

from looseleaf.replay.errors import InvalidTrace

AZURE = MappingProxyType({"arrival": "timestamp", "prompt": "contexttokens", "output": "generatedtokens"})
"""https://github.com/Azure/AzurePublicDataset: the inference traces of 2023 and, with offsets in its times, 2024."""
BURSTGPT = MappingProxyType({"arrival": "timestamp", "prompt": "request tokens", "output": "response tokens"})
"""https://github.com/HPMLL/BurstGPT; a release with sessions has `session id`, too. Times in seconds."""

MEANINGS = {
    "arrival": ("arrival", "arrived_at", "arrival_time", "timestamp", "time", "ts", "start_time"),
    "arrival_ms": ("arrival_ms", "timestamp_ms", "time_ms"),
    "prompt": (
        "prompt_tokens",
        "num_prefill_tokens",
        "input_tokens",
        "input_length",
        "input_len",
        "prompt_len",
        "prompt",
    ),
    "output": ("output_tokens", "num_decode_tokens", "completion_tokens", "output_length", "output_len", "output"),
    "tenant": ("tenant", "client", "user"),
    "session": ("session", "session_id", "session id", "conversation_id"),
    "priority": ("priority",),
    "samples": ("num_samples", "n"),
}
"""What a column can be, and names by which it is known without being told."""
COLUMN_OF = {"prompt": "prompt_tokens", "output": "output_tokens", "samples": "num_samples", "arrival_ms": "arrival"}


def known_columns(names: Iterable[str]) -> dict[str, str]:
    """Meanings → columns, for names that are known. In `names` and the result, names are in lower case."""
    present = set(names)
    return {
        meaning: found
        for meaning, known in MEANINGS.items()
        if (found := next((name for name in known if name in present), None)) is not None
    }


def is_complete(columns: Mapping[str, str]) -> bool:
    return {"prompt", "output"} <= columns.keys() and bool({"arrival", "arrival_ms"} & columns.keys())


def checked_columns(columns: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """What a caller says of the columns, with names as they are. Raises `InvalidTrace`."""
    present = {name.strip().lower(): name for name in names}
    if unknown := sorted(columns.keys() - MEANINGS.keys()):
        raise InvalidTrace(f"A column cannot be {unknown[0]!r}.", hint=f"It can be {', '.join(MEANINGS)}.")
    if not is_complete(columns):
        raise InvalidTrace(
            "The columns of arrival, prompt and output tokens must be named.",
            hint="Write for example --columns arrival=ts,prompt=in,output=out; arrival_ms for milliseconds.",
        )
    if missing := sorted(name for name in columns.values() if name.lower() not in present):
        raise InvalidTrace(f"There is no column {missing[0]!r}.", hint=f"There are {', '.join(present.values())}.")
    return {meaning: present[name.lower()] for meaning, name in columns.items()}


def as_table(frame: pl.DataFrame, columns: Mapping[str, str]) -> pl.DataFrame:
    """`line` and the columns of a trace, out of a frame with `line` and those that `columns` names.

    What is no number or time becomes null, and so a bad line.
    """
    parts = [pl.col("line")]
    for meaning, name in columns.items():
        column = pl.col(name)
        if meaning in {"tenant", "session"}:
            part = column.cast(pl.String).fill_null("")
        elif meaning == "arrival" and frame.schema[name] == pl.String:
            part = _number(column, pl.String())
            if frame.select(part).to_series().null_count():
                part = pl.coalesce(part, seconds_of(column))
        elif meaning == "arrival" and frame.schema[name].is_temporal():
            part = column.cast(pl.Datetime("ns")).dt.epoch("ns") / 1e9
        elif meaning.startswith("arrival"):
            part = _number(column, frame.schema[name]) / (1000 if meaning == "arrival_ms" else 1)
        else:
            number = _number(column, frame.schema[name])
            part = pl.when(number == number.round()).then(number).cast(pl.Int32, strict=False)
            if meaning in {"priority", "samples"}:
                part = part.fill_null(0 if meaning == "priority" else 1)
        parts.append(part.alias(COLUMN_OF.get(meaning, meaning)))
    return frame.select(parts)


def seconds_of(column: pl.Expr) -> pl.Expr:
    """Dates such as 2023-11-16 18:15:46.6805900 or 2024-05-10T00:00:00.01+00:00 as seconds since 1970."""
    text = column.str.strip_chars().str.replace("T", " ", literal=True)
    date = text.str.extract(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)")
    clock = date.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False).dt.epoch("ns") / 1e9
    hours, minutes = (
        text.str.extract(r"[+-](\d\d):?(\d\d)$", group).cast(pl.Float64, strict=False) for group in (1, 2)
    )
    sign = pl.when(text.str.contains(r"-\d\d:?\d\d$")).then(-1.0).otherwise(1.0)
    zone = pl.when(text.str.contains(r"\d:\d\d(\.\d+)? ?[+-]\d\d:?\d\d$")).then(sign * (hours * 3600 + minutes * 60))
    return clock - zone.fill_null(0.0)


def _number(column: pl.Expr, kind: pl.DataType) -> pl.Expr:
    return (column.str.strip_chars() if kind == pl.String else column).cast(pl.Float64, strict=False)
