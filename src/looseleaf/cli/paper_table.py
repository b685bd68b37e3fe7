"""`looseleaf replay paper`: what the PagedAttention paper published, and the same replayed."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from looseleaf.cli.consoles import note, stdout, write
from looseleaf.cli.options import OutputOptions
from looseleaf.replay.paper import Row, remake
from looseleaf.replay.store import ResultStore, default_folder

SETTING = (
    "OPT-13B on one A100-40GB with the paper's pool of 15.7 K slots. Lengths are log-normal with the published means; "
    "the time of a step is chosen so that vLLM's bars of Figure 13 come out, and every other value is a prediction."
)


def show_paper(results: Path | None, output: OutputOptions, *, fresh: bool, processes: int | None) -> None:
    """Three minutes on two cores; a second time at once."""
    store = ResultStore(results or default_folder())
    rows = remake(store, processes=processes, fresh=fresh, told=lambda title: note(f"{title} …"))
    if output.json:
        write(json.dumps({"setting": SETTING, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
        return
    console = stdout()
    console.print(SETTING, markup=False)
    console.print()
    _print(rows, console)
    console.print("* read off the label of a plot, not in the paper's text", markup=False)


def _print(rows: list[Row], console: Console) -> None:
    """A table for each figure; under them, by number, why values differ."""
    reasons = list(dict.fromkeys(row.why for row in rows if row.why))
    widths = [max(len(getattr(row, name)) for row in rows) for name in ("case", "published", "ours")]
    for (figure, title), of_figure in groupby(rows, key=lambda row: (row.figure, row.title)):
        console.print(Text(f"Figure {figure}: {title}", style="bold"))
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim")
        for name, width in zip(("", "published", "ours"), widths, strict=True):
            table.add_column(name, min_width=width)
        table.add_column("")
        for row in of_figure:
            mark = f"({reasons.index(row.why) + 1})" if row.why else ""
            table.add_row(row.case, row.published, row.ours, mark)
        console.print(table)
        console.print()
    for number, why in enumerate(reasons, start=1):
        console.print(f"({number}) {why}", markup=False)
