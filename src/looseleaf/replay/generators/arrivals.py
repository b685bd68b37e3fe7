"""When requests arrive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from looseleaf.replay.errors import InvalidSpec
from looseleaf.replay.generators.parsing import arguments, number

Times: TypeAlias = NDArray[np.float64]
Clock: TypeAlias = Callable[[int], Times]
"""The next so many times, in seconds, in order; it remembers where it is."""


class Arrivals(Protocol):
    def clock(self, draw: np.random.Generator) -> Clock:
        """Times from 0 on."""


@dataclass(frozen=True, slots=True)
class AllAtOnce:
    def clock(self, draw: np.random.Generator) -> Clock:  # noqa: ARG002
        return lambda size: np.zeros(size)


@dataclass(frozen=True, slots=True)
class Regular:
    rate: float
    """Requests per second."""

    def clock(self, draw: np.random.Generator) -> Clock:  # noqa: ARG002
        return _adding(lambda size: np.full(size, 1 / self.rate))


@dataclass(frozen=True, slots=True)
class Gamma:
    """Independent gaps with a gamma distribution; `cv` is their coefficient of variation, 1 for a Poisson process."""

    rate: float
    cv: float = 1.0

    def clock(self, draw: np.random.Generator) -> Clock:
        if self.cv == 1:
            return _adding(lambda size: draw.exponential(1 / self.rate, size))
        shape = self.cv**-2
        return _adding(lambda size: draw.gamma(shape, 1 / self.rate / shape, size))


@dataclass(frozen=True, slots=True)
class OnOff:
    """A Poisson process that is on and off in turns, each for an exponentially distributed time."""

    rate: float
    """Requests per second while it is on."""
    on: float
    """Mean seconds."""
    off: float

    def clock(self, draw: np.random.Generator) -> Clock:
        working = Gamma(self.rate).clock(draw.spawn(1)[0])
        # In time of work, when each period ends; and how much rest is behind when it begins.
        ends, rested = draw.exponential(self.on, 1), np.zeros(1)

        def times(size: int) -> Times:
            nonlocal ends, rested
            at = working(size)
            while ends[-1] <= at[-1]:
                ends = np.concatenate([ends, ends[-1] + np.cumsum(draw.exponential(self.on, 256))])
                rested = np.concatenate([rested, rested[-1] + np.cumsum(draw.exponential(self.off, 256))])
            over = int(np.searchsorted(ends, at[0], side="right"))
            ends, rested = ends[over:], rested[over:]
            return at + rested[np.searchsorted(ends, at, side="right")]

        return times


def _adding(gaps: Callable[[int], Times]) -> Clock:
    """A clock of gaps between times; the first request is a gap after 0."""
    now = 0.0

    def times(size: int) -> Times:
        nonlocal now
        at = now + np.cumsum(gaps(size))
        now = float(at[-1]) if size else now
        return at

    return times


def parse_arrivals(text: str) -> Arrivals:
    """all, regular:RATE, poisson:RATE, gamma:RATE:CV or onoff:RATE:ON:OFF. Raises `InvalidSpec`."""
    kind = text.split(":")[0]
    if kind not in _KINDS:
        raise InvalidSpec(
            f"arrivals is {text!r}.", hint="Write all, regular:RATE, poisson:RATE, gamma:RATE:CV or onoff:RATE:ON:OFF."
        )
    make, names = _KINDS[kind]
    given = arguments(text, "arrivals", list(names))
    return make(*(number(value, names[name], above=True) for name, value in zip(names, given, strict=True)))


_KINDS: dict[str, tuple[Callable[..., Arrivals], dict[str, str]]] = {
    "all": (AllAtOnce, {}),
    "regular": (Regular, {"RATE": "the rate of arrivals"}),
    "poisson": (Gamma, {"RATE": "the rate of arrivals"}),
    "gamma": (Gamma, {"RATE": "the rate of arrivals", "CV": "the CV of the gaps"}),
    "onoff": (OnOff, {"RATE": "the rate of arrivals", "ON": "the mean time on", "OFF": "the mean time off"}),
}
"""Names, and the arguments of each."""
