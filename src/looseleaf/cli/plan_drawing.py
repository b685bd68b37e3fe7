"""Draws a plan on the terminal: the terms, one line each, then what follows from them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from looseleaf.cli.consoles import stdout, write

if TYPE_CHECKING:
    from looseleaf.plan.answers import Answers
    from looseleaf.plan.capacity import Capacity
    from looseleaf.plan.derivation import Section, Term


def draw_plan(capacity: Capacity, sections: list[Section], found: Answers) -> None:
    console = stdout()
    arithmetic = capacity.arithmetic
    heading = Text(capacity.shape.name, style="bold")
    heading.append(f"  {capacity.shape.architecture}, {len(capacity.shape.layers)} layers", style="dim")
    heading.append(f", keys and values in {arithmetic.kv_format.name}", style="dim")
    console.print(heading, soft_wrap=True)
    remarks = [*capacity.shape.notes]
    if arithmetic.kv_format.note:
        remarks.append(f"{arithmetic.kv_format.name}: {arithmetic.kv_format.note}")
    if capacity.settings.tensor_parallel_size > 1:
        remarks.append(
            f"{capacity.settings.tensor_parallel_size} ranks: heads, feed-forward and vocabulary are shared out; "
            "key-value heads fewer than ranks, and latents, are held by every rank"
        )
    for remark in remarks:
        console.print(Text(f"· {remark}", style="yellow"))
    for section in sections:
        console.print()
        console.print(Text(section.title, style="bold"))
        console.print(_table(section.terms))
    console.print()
    console.print(Text("What fits", style="bold"))
    console.print(_table(found.terms, emphasis="bold green" if capacity.fits else "bold red"))
    if not capacity.fits:
        _draw_changes(found)


def _table(terms: Iterable[Term], emphasis: str = "") -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 0, 0, 2))
    table.add_column(max_width=25)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for term in terms:
        table.add_row(term.name, Text(term.text, style=emphasis), Text(term.how))
    return table


def _draw_changes(found: Answers) -> None:
    console = stdout()
    console.print()
    if not found.changes:
        console.print(Text("No single change makes it fit.", style="bold red"))
        return
    console.print(Text("Each of these alone makes it fit, the cheapest first", style="bold"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 0, 0, 2))
    table.add_column()
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for change in found.changes:
        table.add_row(change.setting, f"{change.concurrency:,.2f}×", f"at the price of {change.price}")
    console.print(table)


def draw_hardware(*, as_json: bool) -> None:
    """The table of known devices."""
    from looseleaf.plan.hardware import format_size, known_hardware

    devices = known_hardware().values()
    if as_json:
        write(json.dumps([asdict(each) for each in devices], indent=2) + "\n")
        return
    table = Table("device", "memory", "GB/s", "TFLOP/s", "source", box=None, header_style="bold", pad_edge=False)
    for column in (1, 2, 3):
        table.columns[column].justify = "right"
        table.columns[column].no_wrap = True
    table.columns[0].no_wrap = True
    for each in devices:
        memory = "as built" if each.memory_bytes is None else format_size(each.memory_bytes)
        flops = each.peak_flops("bfloat16") or 0
        table.add_row(
            each.name, memory, f"{(each.bandwidth or 0) / 1e9:,.0f}", f"{flops / 1e12:,.1f}", Text(each.source, "dim")
        )
    stdout().print(table)
