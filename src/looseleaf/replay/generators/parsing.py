"""Numbers in the texts that describe a generated trace."""

from __future__ import annotations

import math
from collections.abc import Sequence

from looseleaf.replay.errors import InvalidSpec


def number(text: str, what: str, *, least: float = 0.0, above: bool = False) -> float:
    """Raises `InvalidSpec` unless it is a finite number of at least, or above, `least`."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < least or (above and value == least):
        raise InvalidSpec(
            f"{what} is {text!r}.", hint=f"It must be a number {'above' if above else 'of at least'} {least:g}."
        )
    return value


def count(text: str, what: str, *, least: int = 1, most: int = 2**31 - 1) -> int:
    """Raises `InvalidSpec` unless it is a whole number within the bounds."""
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise InvalidSpec(f"{what} is {text!r}.", hint=f"It must be a whole number from {least:,} to {most:,}.")
    return value


def arguments(text: str, what: str, names: Sequence[str], *, optional: int = 0) -> list[str]:
    """The parts after the first colon of NAME:A:B. Raises `InvalidSpec` unless there are as many as names."""
    kind, *given = text.split(":")
    if not len(names) - optional <= len(given) <= len(names):
        form = ":".join([kind, *names])
        raise InvalidSpec(f"{what} is {text!r}.", hint=f"Write {form}.")
    return given
