"""`looseleaf explain-log`: what an engine's start-up lines say about its memory."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from looseleaf.cli.command import command
from looseleaf.cli.consoles import stdout, write
from looseleaf.cli.options import OutputOptions

if TYPE_CHECKING:
    from looseleaf.plan.engine_logs import Explanation


def register(app: typer.Typer) -> None:
    command(app, "explain-log")(explain)


def explain(
    output: OutputOptions,
    file: Annotated[Path, typer.Argument(metavar="FILE|-", help="The log; -: what is piped in.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="The model it ran, as for [bold]looseleaf plan[/]: its bytes per token are compared."
        ),
    ] = None,
    tensor_parallel_size: Annotated[int, typer.Option(help="With --model: devices that shared every layer.")] = 1,
    kv_cache_dtype: Annotated[str, typer.Option(help="With --model: the cache's.")] = "auto",
    max_model_len: Annotated[int | None, typer.Option(help="With --model: the maximum length.")] = None,
    max_num_batched_tokens: Annotated[int, typer.Option(help="With --model: tokens per step.")] = 2048,
) -> None:
    """Say what vLLM's or SGLang's start-up lines mean, and whether their numbers agree.

    Each figure in plain words, with the line it stands in; for a refusal, what was missing and what to change.
    """
    from looseleaf.plan.capacity import Capacity, PlanSettings
    from looseleaf.plan.engine_logs import explain_log
    from looseleaf.plan.known_models import find_model

    capacity = None
    if model is not None:
        settings = PlanSettings(
            num_blocks=1,
            tensor_parallel_size=tensor_parallel_size,
            kv_cache_dtype=kv_cache_dtype,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
        )
        capacity = Capacity(find_model(model), settings)
    _print(explain_log(_lines(file), capacity), output)


def _lines(file: Path) -> Iterator[str]:
    """Raises `UnreadableLog`."""
    from looseleaf.plan.errors import UnreadableLog

    if str(file) == "-":
        yield from sys.stdin
        return
    try:
        with file.open(encoding="utf-8", errors="replace") as log:
            yield from log
    except OSError as error:
        raise UnreadableLog(f"{file} cannot be read: {error.strerror or error}.") from error


def _print(explanation: Explanation, output: OutputOptions) -> None:
    if output.json:
        write(json.dumps(asdict(explanation), indent=2) + "\n")
        return
    console = stdout()
    engine = f"{explanation.engine} {explanation.version}".strip()
    console.print(Text(f"A start-up log of {engine}", style="bold"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(max_width=22)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for each in explanation.meanings:
        table.add_row(each.figure, each.value, Text(f"{each.meaning} (line {each.line:,})"))
    console.print(table)
    if explanation.checks:
        console.print()
        console.print(Text("Do the numbers agree?", style="bold"))
        checks = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        checks.add_column(max_width=3)
        checks.add_column(max_width=26)
        checks.add_column(style="dim", overflow="fold")
        for check in explanation.checks:
            mark = Text("yes", style="green") if check.agrees else Text("NO", style="bold red")
            checks.add_row(mark, check.what, Text(check.says))
        console.print(checks)
    for sentence in explanation.verdict:
        console.print()
        style = "bold red" if sentence.startswith("REFUSED") else "bold"
        console.print(Text(sentence, style=style))
