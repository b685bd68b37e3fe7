"""What becomes of a comparison: tables in the terminal, JSON, a page, Parquet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from looseleaf.cli.comparison_table import comparison_tables, tenant_table
from looseleaf.cli.consoles import note, stdout, warn, write
from looseleaf.cli.options import OutputOptions
from looseleaf.errors import ConfigurationError
from looseleaf.replay.report import Comparison, as_document, render
from looseleaf.replay.report.document import finite


def show(comparison: Comparison, output: OutputOptions) -> None:
    if output.json:
        write(json.dumps(as_json(comparison), indent=2, allow_nan=False) + "\n")
        return
    if not output.quiet:
        for line in comparison.lead:
            note(line)
    done = [cell for cell in comparison.cells if cell.outcome is not None]
    if done:
        console = stdout()
        for table in comparison_tables(comparison, console.width):
            console.print(table, "")
        last = done[-1].outcome
        if last is not None and len(last.figures["tenants"]) > 1:
            name = next(
                name for name, cell in zip(comparison.labels, comparison.cells, strict=True) if cell is done[-1]
            )
            console.print(f"Tenants, {name}:", highlight=False, markup=False)
            console.print(tenant_table(last, comparison.slo))
    for line in comparison.warnings:
        warn(line)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The form is described in docs/replay.md; names do not change within a version."""
    cells = []
    for name, cell in zip(comparison.labels, comparison.cells, strict=True):
        entry: dict[str, Any] = {"label": name, "cell": cell.settings.as_dict()}
        if cell.outcome is None:
            entry["refused"] = cell.refusal
        else:
            entry |= cell.outcome.figures
            entry["bound_shares"] = cell.outcome.bound
            entry["tenants"] = cell.outcome.tenants(comparison.slo)
            if comparison.slo is not None:
                good = cell.outcome.goodput(comparison.slo)
                entry["goodput"] = {
                    "requests": good.met,
                    "share": good.share,
                    "requests_per_second": good.requests_per_second,
                    "output_tokens_per_second": good.tokens_per_second,
                }
        cells.append(entry)
    slo = comparison.slo
    document = {
        "title": comparison.title,
        "slo": None if slo is None else {"ttft": slo.ttft, "tpot": slo.tpot, "e2e": slo.e2e},
        "warnings": list(comparison.warnings),
        "cells": cells,
    }
    return finite(document)  # type: ignore[no-any-return]


def write_report(comparison: Comparison, path: Path) -> None:
    page = render(as_document(comparison))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"The report cannot be written to {path}: {error.strerror or error}.") from error
    note(f"Report: {path}")


def write_tables(comparison: Comparison, folder: Path) -> None:
    """`cells.parquet` has a row for each cell; `requests.parquet` and `timeline.parquet` name the cell of each row."""
    done = [
        (name, cell.outcome)
        for name, cell in zip(comparison.labels, comparison.cells, strict=True)
        if cell.outcome is not None
    ]
    if not done:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        rows = [{"cell": name, **outcome.row()} for name, outcome in done]
        pl.DataFrame(rows, infer_schema_length=None).write_parquet(folder / "cells.parquet")
        for table in ("timeline", *(["requests"] if done[0][1].kept_requests is not None else [])):
            named = [getattr(outcome, table).select(pl.lit(name).alias("cell"), pl.all()) for name, outcome in done]
            pl.concat(named).write_parquet(folder / f"{table}.parquet")
    except OSError as error:
        raise ConfigurationError(f"The tables cannot be written to {folder}: {error.strerror or error}.") from error
    note(f"Tables: {folder}/cells.parquet, requests.parquet, timeline.parquet")
