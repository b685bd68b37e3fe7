"""Reads numbers out of a model's configuration, and says which one is missing or wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from looseleaf.plan.errors import InvalidModelShape

_LARGEST = 2**40


class ConfigFields:
    """The configuration of one model, under the name it goes by in messages."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        self.name = name
        self.values = values

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, *keys: str, default: int | None = None, minimum: int = 1) -> int:
        """The first of `keys` that is set. Raises `InvalidModelShape` if none is and there is no default."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= _LARGEST:
                raise self.wrong(key, value, f"a whole number, at least {minimum}")
            return value
        if default is None:
            raise InvalidModelShape(
                f"The configuration of {self.name} has no {' or '.join(keys)}.", hint="Give the whole config.json."
            )
        return default

    def optional(self, key: str) -> int | None:
        """A whole number of at least 1, or None where it is absent or null."""
        return self.integer(key) if self.has(key) else None

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str = "") -> str:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, value, "text")
        return value

    def number(self, key: str) -> float:
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LARGEST:
            raise self.wrong(key, value, "a number above 0")
        return float(value)

    def sequence(self, key: str, length: int) -> Sequence[Any]:
        """A list with one entry per layer."""
        value = self.values.get(key)
        if not isinstance(value, list) or len(value) != length:
            count = f" of {len(value)}" if isinstance(value, list) else ""
            raise self.wrong(key, f"a list{count}" if count else value, f"a list of {length}, one entry per layer")
        return value

    def wrong(self, key: str, value: object, wanted: str) -> InvalidModelShape:
        shown = repr(value)
        return InvalidModelShape(
            f"The configuration of {self.name} has {key} = {shown[:80]}.", hint=f"It must be {wanted}."
        )
