"""A comparison in the terminal: one table, turned to what fits."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from looseleaf.replay.goodput import Slo
from looseleaf.replay.outcome import Outcome
from looseleaf.replay.report import Comparison
from looseleaf.replay.settings import Settings, varied_axes
from looseleaf.replay.table import MEMORY, Figure, binding, service

FEW_CELLS = 3
"""So many stand beside one another, with every figure in a line of its own."""
WIDE = 130
"""Columns of the terminal that hold the main figures of memory and of service in one table."""


def comparison_tables(comparison: Comparison, width: int) -> list[Table]:
    """Figures as lines where there are few cells; else the main figures as columns, in two tables if need be."""
    done = [
        (name, cell.settings, cell.outcome)
        for name, cell in zip(comparison.labels, comparison.cells, strict=True)
        if cell.outcome is not None
    ]
    of_service = service(comparison.slo)
    if len(done) <= FEW_CELLS:
        return [_upright([(name, outcome) for name, _, outcome in done], (*MEMORY, *of_service))]
    rows = [(settings, outcome) for _, settings, outcome in done]
    parts = [(*MEMORY, *of_service)] if width >= WIDE else [MEMORY, of_service]
    return [_flat(rows, [figure for figure in part if figure.short], bound=part is not of_service) for part in parts]


def tenant_table(outcome: Outcome, slo: Slo | None, most: int = 12) -> Table:
    """The tenants with the most output, and what they got."""
    table = _table(
        "tenant", "requests", "output tokens", "share", "from cache", "TTFT mean s", "TTFT p99 s", "E2E mean s"
    )
    if slo is not None:
        table.add_column("in SLO", justify="right")
    tenants = outcome.tenants(slo)
    for tenant in tenants[:most]:
        row: list[Text | str] = [
            Text(tenant["tenant"] or "(none)"),
            f"{tenant['requests']:,}",
            f"{tenant['output_tokens']:,}",
            f"{tenant['output_share']:.1%}",
            f"{tenant['cached_prompt_tokens'] / max(tenant['prompt_tokens'], 1):.1%}",
            f"{tenant['ttft_mean']:.3g}",
            f"{tenant['ttft_p99']:.3g}",
            f"{tenant['e2e_mean']:.3g}",
        ]
        table.add_row(*row, *([] if slo is None else [f"{tenant['slo_share']:.1%}"]))
    if len(tenants) > most:
        table.caption = f"and {len(tenants) - most:,} more (--json, --html: all of them)"
    return table


def _upright(done: Sequence[tuple[str, Outcome]], rows: Sequence[Figure]) -> Table:
    table = _table("", *(name.replace(", ", "\n") for name, _ in done))
    outcomes = [outcome for _, outcome in done]
    table.add_row("waited for", *(binding(outcome) for outcome in outcomes))
    for figure in rows:
        best = figure.best(outcomes)
        shown = [figure.show(outcome) for outcome in outcomes]
        table.add_row(figure.title, *(_emphasised(text, place in best) for place, text in enumerate(shown)))
    return table


def _flat(rows: Sequence[tuple[Settings, Outcome]], figures: Sequence[Figure], *, bound: bool) -> Table:
    """A column for each setting that differs, for what held requests back, and for each figure."""
    axes = varied_axes([settings for settings, _ in rows])
    table = _table(
        *(axis.heading for axis in axes), *(["waited\nfor"] if bound else []), *(figure.short for figure in figures)
    )
    for column in table.columns[: len(axes)]:
        column.justify, column.overflow = "left", "fold"
    outcomes = [outcome for _, outcome in rows]
    best = [figure.best(outcomes) for figure in figures]
    for place, (settings, outcome) in enumerate(rows):
        shown = [
            _emphasised(figure.show(outcome), place in of_figure)
            for figure, of_figure in zip(figures, best, strict=True)
        ]
        table.add_row(*(axis.show_in(settings) for axis in axes), *([binding(outcome)] if bound else []), *shown)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(first, *others, box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _emphasised(text: str, is_best: bool) -> Text:
    return Text(text, style="bold green" if is_best else "")
