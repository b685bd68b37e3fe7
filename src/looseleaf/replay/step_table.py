"""A step's time looked up in a measured table."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from looseleaf.errors import ConfigurationError

COLUMNS = ("num_tokens", "context_tokens", "seconds")


class StepTable:
    """Seconds on a grid of tokens per step and of context tokens (summed over the sequences): between its points, and
    beyond the last ones, along straight lines; below the first ones as there."""

    def __init__(
        self, num_tokens: NDArray[np.float64], context_tokens: NDArray[np.float64], seconds: NDArray[np.float64]
    ) -> None:
        """`seconds`: `[len(num_tokens), len(context_tokens)]`; both rising, at least two each."""
        self._tokens = num_tokens
        self._contexts = context_tokens
        self._seconds = seconds
        self._least = float(seconds.min())

    def seconds(
        self,
        *,
        num_tokens: int,
        num_seqs: int,  # noqa: ARG002 (a table knows two things of a step)
        num_sampled: int,  # noqa: ARG002
        context_tokens: int,
        attention_pairs: int,  # noqa: ARG002
    ) -> float:
        return float(self._at(num_tokens, np.array([float(context_tokens)]))[0])

    def decode_seconds(self, *, num_seqs: int, context_tokens: int, num_steps: int) -> NDArray[np.float64]:
        last = context_tokens + num_seqs * num_steps
        return self._at(num_seqs, np.arange(context_tokens, last, num_seqs, dtype=np.float64))

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "table",
            "num_tokens": self._tokens.tolist(),
            "context_tokens": self._contexts.tolist(),
            "seconds": self._seconds.tolist(),
        }

    def _at(self, num_tokens: int, contexts: NDArray[np.float64]) -> NDArray[np.float64]:
        row = min(max(int(self._tokens.searchsorted(num_tokens)), 1), len(self._tokens) - 1)
        below, above = float(self._tokens[row - 1]), float(self._tokens[row])
        share = max(0.0, (num_tokens - below) / (above - below))
        values = self._seconds[row - 1] * (1.0 - share) + self._seconds[row] * share
        column = np.clip(self._contexts.searchsorted(contexts), 1, len(self._contexts) - 1)
        left, right = self._contexts.take(column - 1), self._contexts.take(column)
        parts = np.maximum(0.0, (contexts - left) / (right - left))
        found: NDArray[np.float64] = values.take(column - 1) * (1.0 - parts) + values.take(column) * parts
        return np.maximum(found, self._least)


def read_step_table(path: Path) -> StepTable:
    """A CSV with the columns num_tokens, context_tokens and seconds, one line for each point of a full grid.

    Raises `ConfigurationError`, which names the line or the point that is missing.
    """
    points: dict[tuple[float, float], float] = {}
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
            raise ConfigurationError(
                f"{path} has no column {missing[0]!r}.", hint=f"A table of step times needs {', '.join(COLUMNS)}."
            )
        for row in reader:
            try:
                tokens, context, seconds = (float(row[name]) for name in COLUMNS)
            except (TypeError, ValueError):
                tokens = context = seconds = -1.0
            if not (0 < tokens < np.inf and 0 <= context < np.inf and 0 < seconds < np.inf):
                raise ConfigurationError(
                    f"Line {reader.line_num} of {path} is no step: {', '.join(str(row[name]) for name in COLUMNS)}.",
                    hint="Tokens and seconds must be numbers above 0, the context at least 0.",
                )
            points[tokens, context] = seconds
    token_counts, contexts = (np.array(sorted({point[axis] for point in points})) for axis in (0, 1))
    if len(token_counts) < 2 or len(contexts) < 2:
        raise ConfigurationError(
            f"{path} has {len(token_counts)} numbers of tokens and {len(contexts)} of context tokens.",
            hint="A grid needs at least two of each.",
        )
    for tokens in token_counts.tolist():
        for context in contexts.tolist():
            if (tokens, context) not in points:
                raise ConfigurationError(
                    f"{path} does not say how long a step of {tokens:g} tokens with {context:g} of context takes.",
                    hint="Measure every number of tokens with every number of context tokens.",
                )
    grid = [[points[tokens, context] for context in contexts.tolist()] for tokens in token_counts.tolist()]
    return StepTable(token_counts, contexts, np.array(grid))
