"""A step's time as it was measured on a machine: the few parameters that describe it, and how they are found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from looseleaf.errors import ConfigurationError

KIND = "calibrated"


class MeasuredStep(Protocol):
    """What one step computed, and how long it took; see `StepCost.seconds`."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def num_sampled(self) -> int: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def attention_pairs(self) -> int: ...
    @property
    def seconds(self) -> float: ...


@dataclass(frozen=True, slots=True)
class StepParameters:
    """Seconds of a step: `step + token × max(tokens, crossover) + sample × sampled + context × context tokens + pair ×
    pairs of query and key`. All but the crossover in seconds, none below 0."""

    step: float
    token: float
    crossover: float
    """Tokens up to which the matrices take the same time, that of reading them."""
    sample: float
    context: float
    pair: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (isinstance(value, int | float) and 0 <= value < float("inf")):
                raise ConfigurationError(f"{field.name} is {value!r} but must be a number, at least 0.")


class Calibrated:
    def __init__(self, parameters: StepParameters, about: dict[str, Any] | None = None) -> None:
        """`about`: what was measured, as plain values."""
        self.parameters = parameters
        self.about = about or {}

    def seconds(
        self,
        *,
        num_tokens: int,
        num_seqs: int,  # noqa: ARG002 (what a sequence costs is told from what it samples)
        num_sampled: int,
        context_tokens: int,
        attention_pairs: int,
    ) -> float:
        parameters = self.parameters
        attention = context_tokens * parameters.context + attention_pairs * parameters.pair
        return self._without_attention(num_tokens, num_sampled) + attention

    def decode_seconds(self, *, num_seqs: int, context_tokens: int, num_steps: int) -> NDArray[np.float64]:
        parameters = self.parameters
        contexts = np.arange(context_tokens, context_tokens + num_seqs * num_steps, num_seqs, dtype=np.float64)
        attention: NDArray[np.float64] = contexts * parameters.context + contexts * parameters.pair
        return self._without_attention(num_seqs, num_seqs) + attention

    def describe(self) -> dict[str, Any]:
        return {"kind": KIND, **self.about, "parameters": asdict(self.parameters)}

    def _without_attention(self, num_tokens: int, num_sampled: int) -> float:
        parameters = self.parameters
        tokens = max(float(num_tokens), parameters.crossover)
        return parameters.step + tokens * parameters.token + num_sampled * parameters.sample

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.describe(), indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Fit:
    parameters: StepParameters
    mean_error: float
    """Mean absolute error of the steps it was made from, as a share of their times."""
    worst_error: float


_CROSSOVERS = np.geomspace(1, 512, 55)
_SUBSETS = [list(chosen) for size in range(1, 6) for chosen in combinations(range(5), size)]


def fit_steps(steps: Sequence[MeasuredStep]) -> Fit:
    """The parameters with the smallest squared relative errors.

    None may be below 0: of each subset of the terms, the others being 0, the least squares are found, and the best
    without a negative one is taken. Raises `ConfigurationError` for fewer steps than parameters.
    """
    if len(steps) < 6:
        raise ConfigurationError(
            f"{len(steps)} measured steps are too few for 6 parameters.", hint="Measure longer, or with a larger pool."
        )
    times = np.array([step.seconds for step in steps])
    tokens = np.array([step.num_tokens for step in steps], float)
    others = np.array([(step.num_sampled, step.context_tokens, step.attention_pairs) for step in steps], float)
    best, chosen = np.inf, (0.0, np.zeros(5))
    for crossover in _CROSSOVERS:
        terms = np.column_stack([np.ones(len(steps)), np.maximum(tokens, crossover), others]) / times[:, None]
        scale = terms.max(axis=0)
        for subset in _SUBSETS:
            part = terms[:, subset] / scale[subset]
            found = np.linalg.lstsq(part, np.ones(len(steps)))[0]
            if found.min() < 0:
                continue
            loss = float(((part @ found - 1) ** 2).sum())
            if loss < best:
                values = np.zeros(5)
                values[subset] = found / scale[subset]
                best, chosen = loss, (float(crossover), values)
    crossover, (step, token, sample, context, pair) = chosen[0], chosen[1].tolist()
    parameters = StepParameters(step, token, crossover, sample, context, pair)
    cost = Calibrated(parameters)
    errors = np.array(
        [
            cost.seconds(
                num_tokens=each.num_tokens,
                num_seqs=0,
                num_sampled=each.num_sampled,
                context_tokens=each.context_tokens,
                attention_pairs=each.attention_pairs,
            )
            / each.seconds
            - 1
            for each in steps
        ]
    )
    return Fit(parameters, float(np.abs(errors).mean()), float(np.abs(errors).max()))
