"""Figures of a start-up log, and what is said about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from looseleaf.plan.log_lines import Found

TOLERANCE = 0.01
"""Figures are printed with two or three digits: what differs by less than this agrees."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """One figure of the log, in plain words."""

    figure: str
    value: str
    meaning: str
    line: int


@dataclass(frozen=True, slots=True)
class Check:
    """Whether figures agree: what was put together, both sides, and what it means if they do not."""

    what: str
    agrees: bool
    says: str


class Figures:
    """The numbers of a log by name, and where they stand."""

    def __init__(self, found: Mapping[str, Found]) -> None:
        self._found = found

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def has(self, *names: str) -> bool:
        return all(name in self._found for name in names)

    def positive(self, *names: str) -> bool:
        """Whether all are there and above 0, so that one may divide by them."""
        return all(self.get(name, 0) > 0 for name in names)

    def __getitem__(self, name: str) -> float:
        return float(self._found[name].value)

    def get(self, name: str, default: float) -> float:
        found = self._found.get(name)
        return default if found is None else float(found.value)

    def line(self, name: str) -> int:
        return self._found[name].line

    def told(self, name: str, figure: str, value: str, meaning: str) -> Iterator[Meaning]:
        """The meaning of `name`, if the log has it; {} in `value` is its number."""
        if name in self:
            yield Meaning(figure, value.format(self[name]), meaning, self.line(name))
