"""How many tokens prompts and outputs have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from looseleaf.replay.errors import InvalidSpec
from looseleaf.replay.generators.parsing import arguments, count, number

Tokens: TypeAlias = NDArray[np.int64]
MOST = 1 << 24
"""Tokens; lengths beyond are cut to it."""

PUBLISHED = {"sharegpt": (161.31, 337.99), "alpaca": (19.31, 58.45)}
"""Mean prompt and output of the two datasets in the PagedAttention paper (Kwon et al., 2023, Figure 11). The paper
publishes means and plots; that the lengths are log-normal, and their CV, is our choice."""
PUBLISHED_CV = 1.0


class Lengths(Protocol):
    def draw(self, draw: np.random.Generator, size: int) -> Tokens:
        """At least 1 each."""

    def mean(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Whole numbers from `least` to `most`, both included."""

    least: int
    most: int

    def draw(self, draw: np.random.Generator, size: int) -> Tokens:
        return draw.integers(self.least, self.most, size, endpoint=True)

    def mean(self) -> float:
        return (self.least + self.most) / 2


@dataclass(frozen=True, slots=True)
class LogNormal:
    average: float
    cv: float
    """Coefficient of variation: standard deviation over mean."""
    most: int = MOST

    def draw(self, draw: np.random.Generator, size: int) -> Tokens:
        variance = np.log1p(self.cv**2)
        values = draw.lognormal(np.log(self.average) - variance / 2, np.sqrt(variance), size)
        # Rounded at random, up or down, so that the mean stays; below 1 it cannot.
        return np.clip(np.floor(values + draw.random(size)), 1, self.most).astype(np.int64)

    def mean(self) -> float:
        return self.average


@dataclass(frozen=True, slots=True)
class Histogram:
    """One of some ranges, by weight, and each length within it alike."""

    ranges: tuple[Uniform, ...]
    weights: tuple[float, ...]

    def draw(self, draw: np.random.Generator, size: int) -> Tokens:
        shares = np.array(self.weights) / sum(self.weights)
        which = draw.choice(len(self.ranges), size, p=shares)
        least, most = (np.array([getattr(each, end) for each in self.ranges])[which] for end in ("least", "most"))
        return draw.integers(least, most, endpoint=True)

    def mean(self) -> float:
        return sum(r.mean() * w for r, w in zip(self.ranges, self.weights, strict=True)) / sum(self.weights)


def parse_lengths(text: str, what: str) -> Lengths:
    """N, uniform:A-B, lognormal:MEAN:CV[:MOST], histogram:A-BxWEIGHT|…, sharegpt[:CV] or alpaca[:CV].

    `what`: prompt or output. Raises `InvalidSpec`.
    """
    kind = text.split(":")[0]
    if kind.isdigit():
        length = count(text, what, most=MOST)
        return Uniform(length, length)
    if kind == "uniform":
        return _range(arguments(text, what, ["A-B"])[0], what)
    if kind == "lognormal":
        mean, cv, *most = arguments(text, what, ["MEAN", "CV", "MOST"], optional=1)
        return LogNormal(
            number(mean, f"the mean {what}", least=1),
            number(cv, f"the CV of {what}", above=True),
            count(most[0], f"the longest {what}", most=MOST) if most else MOST,
        )
    if kind == "histogram":
        pieces = [piece.rpartition("x") for piece in arguments(text, what, ["A-BxWEIGHT|…"])[0].split("|")]
        weights = tuple(number(weight, f"a weight of {what}") for _, _, weight in pieces)
        if not sum(weights):
            raise InvalidSpec(f"All weights of {what} are 0.", hint="At least one must be more.")
        return Histogram(tuple(_range(ends, what) for ends, _, _ in pieces), weights)
    if kind in PUBLISHED:
        cv_given = arguments(text, what, ["CV"], optional=1)
        cv_value = number(cv_given[0], f"the CV of {what}", above=True) if cv_given else PUBLISHED_CV
        return LogNormal(PUBLISHED[kind][what != "prompt"], cv_value)
    raise InvalidSpec(
        f"{what} is {text!r}.",
        hint="Write a number, uniform:A-B, lognormal:MEAN:CV, histogram:A-BxWEIGHT|…, sharegpt or alpaca.",
    )


def _range(text: str, what: str) -> Uniform:
    low, dash, high = text.partition("-")
    least = count(low, f"the shortest {what}", most=MOST)
    return Uniform(least, count(high, f"the longest {what}", least=least, most=MOST) if dash else least)
