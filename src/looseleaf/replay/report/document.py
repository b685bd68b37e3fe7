"""What the report shows, as plain values for the page's script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from looseleaf.replay.goodput import Slo
from looseleaf.replay.matrix import Cell
from looseleaf.replay.outcome import CURVE, KINDS, Outcome
from looseleaf.replay.settings import label, varied_axes
from looseleaf.replay.table import MEMORY, MISSING, binding, service
from looseleaf.replay.timeline import REASONS

LATENCIES = {"ttft": "first token", "tpot": "per output token", "e2e": "end to end", "queue": "in the queue"}
MOST_TENANTS = 50

WORDS = (
    (
        "blocks, seats, token budget",
        "What the next request in the queue waited for: memory for its prompt (and the watermark), one of the "
        "max_num_seqs places, or room in the step's token budget.",
    ),
    (
        "token states, reserved, internal fragmentation, free",
        "Every slot of the pool is one of these: it holds a token's key and value; it is held for a token that will "
        "come; it is held and will never be used; nobody holds it.",
    ),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A finished matrix, and how it came about."""

    cells: Sequence[Cell]
    title: str
    lead: Sequence[str]
    """Lines about the trace, the system and the cost of a step."""
    warnings: Sequence[str]
    slo: Slo | None = None
    made_by: str = "Looseleaf"
    """Name and version."""

    @property
    def labels(self) -> list[str]:
        settings = [cell.settings for cell in self.cells]
        axes = varied_axes(settings)
        return [label(each, axes) for each in settings]


def as_document(comparison: Comparison) -> dict[str, Any]:
    """Numbers that are not are None."""
    columns = (*MEMORY, *service(comparison.slo))
    slo = comparison.slo
    document = {
        "title": comparison.title,
        "lead": list(comparison.lead),
        "warnings": list(comparison.warnings),
        "made": f"{comparison.made_by}. Time is virtual: the scheduler and the memory are the ones that "
        "serve; the duration of each step comes from the cost model.",
        "figures": _figures(comparison),
        "quantiles": [percent / 100 for percent in CURVE],
        "latencies": LATENCIES,
        "slo": {} if slo is None else {"ttft": slo.ttft, "tpot": slo.tpot, "e2e": slo.e2e},
        "glossary": [*WORDS, *((column.title, column.meaning) for column in columns if column.meaning)],
        "cells": list(_cells(comparison)),
    }
    return finite(document)  # type: ignore[no-any-return]


def _figures(comparison: Comparison) -> list[dict[str, Any]]:
    """A row of the table each: for every cell that was replayed the text, and the places of the best."""
    outcomes = [cell.outcome for cell in comparison.cells if cell.outcome is not None]
    rows: list[dict[str, Any]] = [
        {"title": "waited for", "about": "memory", "shown": [binding(outcome) for outcome in outcomes], "best": []}
    ]
    for about, figures in (("memory", MEMORY), ("service", service(comparison.slo))):
        rows += [
            {
                "title": figure.title,
                "about": about,
                "shown": [figure.show(outcome) for outcome in outcomes],
                "best": sorted(figure.best(outcomes)),
            }
            for figure in figures
        ]
    return rows


def _cells(comparison: Comparison) -> Iterable[dict[str, Any]]:
    for cell, name in zip(comparison.cells, comparison.labels, strict=True):
        outcome = cell.outcome
        if outcome is None:
            yield {"label": name, "refused": cell.refusal}
            continue
        timeline = outcome.timeline
        yield {
            "label": name,
            "split": {kind: outcome.totals["slot_shares"].get(kind, 0.0) for kind in KINDS},
            "bound": outcome.bound,
            "quantiles": {kind: _short(outcome.curves[kind]) for kind in LATENCIES},
            "timeline": {
                column: _short(timeline[column].to_list()) for column in ("time", *KINDS, "running", "waiting")
            },
            "waits": {
                reason: _short((timeline[f"{reason}_seconds"] / timeline["seconds"]).to_list()) for reason in REASONS
            },
            "tenants": _tenants(outcome, comparison.slo),
        }


def _tenants(outcome: Outcome, slo: Slo | None) -> list[list[str]]:
    """Rows for the page's table; nothing where there is one tenant. The busiest of very many."""
    tenants = outcome.tenants(slo)
    if len(tenants) < 2:
        return []
    return [
        [
            tenant["tenant"] or "(none)",
            f"{tenant['requests']:,}",
            f"{tenant['output_tokens']:,}",
            f"{tenant['output_share']:.1%}",
            f"{tenant['ttft_mean']:.3g}",
            f"{tenant['ttft_p99']:.3g}",
            f"{tenant['e2e_mean']:.3g}",
            MISSING if slo is None else f"{tenant['slo_share']:.1%}",
        ]
        for tenant in tenants[:MOST_TENANTS]
    ]


def _short(values: Iterable[float]) -> list[float]:
    """Six digits are more than a plot can show."""
    return [float(f"{value:.6g}") for value in values]


def finite(value: Any) -> Any:
    """The same value, as JSON can say it: None for what is not a number."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
