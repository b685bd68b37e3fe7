"""A plan as a sheet, for capacity reviews: one row per figure."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from looseleaf.plan.answers import Answers
from looseleaf.plan.derivation import Section
from looseleaf.plan.errors import InvalidPlan

COLUMNS = ("section", "term", "amount", "unit", "how")


def sheet_rows(settings: Sequence[tuple[str, object]], sections: Sequence[Section], found: Answers) -> list[list[str]]:
    """Settings, derivation, answers and changes, under `COLUMNS`."""
    rows = [["settings", name, str(value), "", ""] for name, value in settings]
    for section in sections:
        rows += [[section.title, t.name.lstrip("− "), f"{t.amount:.10g}", t.unit, t.how] for t in section.terms]
    rows += [["answers", t.name, f"{t.amount:.6g}", t.unit, t.how] for t in found.terms]
    rows += [["changes that fit", c.setting, f"{c.concurrency:.6g}", "requests", c.price] for c in found.changes]
    return rows


def write_sheet(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """As CSV. Raises `InvalidPlan` if the file cannot be written."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(rows)
    except OSError as error:
        raise InvalidPlan(
            f"{path} cannot be written: {error.strerror or error}.", hint="Choose another file."
        ) from error
