"""What is wrong with the lines of a trace: told by reason, with counts and the first line of each."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from looseleaf.replay.errors import InvalidTrace
from looseleaf.replay.trace import BadLines, SkippedLines

LONGEST = 2**31 - 1
"""Tokens of a request."""
ENOUGH = 1000
"""Bad lines after which a reading that they end does not go on."""
SHOWN = 4
"""Reasons in a message."""


class BadLineCounts:
    def __init__(self, path: Path, bad_lines: BadLines) -> None:
        self.number = 0
        self._path = path
        self._fatal = bad_lines == "fatal"
        self._reasons: dict[str, SkippedLines] = {}

    def add(self, line: int, reason: str, count: int = 1) -> None:
        """Raises `InvalidTrace` where they are fatal and many."""
        known = self._reasons.get(reason)
        number, first = (known.count + count, known.first_line) if known else (count, line)
        self._reasons[reason] = SkippedLines(reason, number, first)
        self.number += count
        if self._fatal and self.number >= ENOUGH:
            raise self._refusal(f"at least {self.number:,} lines")

    def check(self, num_good: int) -> None:
        """Raises `InvalidTrace` where a bad line is fatal, or nothing else is left."""
        if self.number and self._fatal:
            raise self._refusal(f"{self.number:,} of {self.number + num_good:,} requests")
        if not num_good:
            skipped = f": all {self.number:,} lines were skipped ({self._listed()})" if self.number else ""
            raise InvalidTrace(f"{self._path} holds no request{skipped}.", hint="Check the file and its format.")

    def skipped(self) -> tuple[SkippedLines, ...]:
        return tuple(self._reasons.values())

    def _refusal(self, how_many: str) -> InvalidTrace:
        return InvalidTrace(
            f"{self._path}: {how_many} cannot be used: {self._listed()}.",
            hint="Mend the file, or leave such lines out with --bad-lines skip.",
        )

    def _listed(self) -> str:
        ranked = sorted(self._reasons.values(), key=lambda each: -each.count)
        shown = [f"{each.reason} ({each.count:,}, the first in line {each.first_line})" for each in ranked[:SHOWN]]
        return "; ".join([*shown, f"and {len(ranked) - SHOWN} more reasons"] if len(ranked) > SHOWN else shown)


def why_not(*, is_absolute: bool) -> pl.Expr:
    """Why a row cannot be used; null where it can. `is_absolute`: times are counted from 1970."""
    arrival, prompt, output = pl.col("arrival"), pl.col("prompt_tokens"), pl.col("output_tokens")
    runs, samples, firsts = pl.col("run_lengths"), pl.col("num_samples"), pl.col("run_firsts")
    is_early = (arrival < 0) & (not is_absolute)
    total = prompt.cast(pl.Int64) + samples.cast(pl.Int64) * output
    return (
        pl.when(arrival.is_null() | ~arrival.is_finite()).then(pl.lit("the arrival is no time"))
        .when(is_early).then(pl.lit("the arrival is before the beginning of the trace"))
        .when(prompt.is_null() | (prompt < 0)).then(pl.lit("the number of prompt tokens is missing or negative"))
        .when(prompt == 0).then(pl.lit("the prompt has no tokens"))
        .when(output.is_null() | (output < 0)).then(pl.lit("the number of output tokens is missing or negative"))
        .when(output == 0).then(pl.lit("the output has no tokens"))
        .when(samples.is_null() | (samples < 1)).then(pl.lit("the number of samples is below 1"))
        .when(total > LONGEST).then(pl.lit(f"prompt and outputs are longer than {LONGEST:,} tokens"))
        .when((runs.list.sum() != prompt) | (runs.list.min() < 1)).then(pl.lit("the runs are not its length"))
        .when((firsts.list.min() < 0) | (firsts.list.len() != runs.list.len())).then(pl.lit("an id is negative"))
    )  # fmt: skip
