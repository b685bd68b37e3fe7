"""`looseleaf replay`: real or generated traffic through the scheduler and the memory that serve, in virtual time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from looseleaf import __version__
from looseleaf.cli.command import command
from looseleaf.cli.consoles import counted, note
from looseleaf.cli.options import OutputOptions, length_or_auto
from looseleaf.cli.replay_options import RESULTS, SWEEP, SYSTEM, SweepOptions, SystemOptions
from looseleaf.cli.trace_options import ReadingOptions, TraceText
from looseleaf.errors import ConfigurationError

if TYPE_CHECKING:
    from looseleaf.replay.matrix import Cell

PAPER = "paper"


def register(app: typer.Typer) -> None:
    command(app, "replay")(replay_command)


def replay_command(
    trace: TraceText,
    reading: ReadingOptions,
    system: SystemOptions,
    sweep: SweepOptions,
    output: OutputOptions,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Every allocator, and paged memory in blocks of 1, 16 and 128; with the prefix cache where prompts "
            "begin alike.",
            rich_help_panel=SWEEP,
        ),
    ] = False,
    max_model_len: Annotated[
        Any,  # Typer takes no parser for a union
        typer.Option(
            parser=length_or_auto,
            metavar="N|auto",
            help="Longest sequence, and what contiguous-max reserves; auto: the power of two that holds the longest "
            "request.",
            rich_help_panel=SYSTEM,
        ),
    ] = None,
    isolate_tenants: Annotated[
        bool, typer.Option("--isolate-tenants", help="Tenants never share blocks.", rich_help_panel=SYSTEM)
    ] = False,
    slo: Annotated[
        str | None,
        typer.Option(metavar="ttft=2s,itl=100ms", help="Targets that goodput counts by.", rich_help_panel=RESULTS),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one page with all plots.", rich_help_panel=RESULTS)
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write each cell's requests and timeline there as Parquet.", rich_help_panel=RESULTS
        ),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where finished cells are kept, so that the same cell is never replayed twice. Default: replay in "
            "$LOOSELEAF_CACHE or ~/.cache/looseleaf.",
            rich_help_panel=RESULTS,
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Replay also what is kept already.", rich_help_panel=RESULTS)
    ] = False,
    forget_requests: Annotated[
        bool,
        typer.Option(
            "--forget-requests",
            help="Keep no row for each request, only distributions: memory stays flat for millions; no goodput.",
            rich_help_panel=RESULTS,
        ),
    ] = False,
    processes: Annotated[
        int | None, typer.Option(help="Cells replayed at once. Default: one per core.", min=1, rich_help_panel=RESULTS)
    ] = None,
) -> None:
    """Replay a trace under one setting, or compare many. In place of a trace, the word [bold]paper[/] stands for the
    figures of the PagedAttention paper.

        looseleaf replay conversation.jsonl.gz --compare --html report.html

        looseleaf replay chats.jsonl --block-size 1,16,256 --watermark 0,5% --slo ttft=2s,itl=100ms

    The scheduler and the memory are the very ones that serve; a cost model says how long each step takes, so a replay
    is deterministic and takes seconds. Each finished cell is kept: Ctrl-C loses only those in progress.
    """
    if trace == PAPER:
        from looseleaf.cli.paper_table import show_paper

        show_paper(results, output, fresh=fresh, processes=processes)
        return

    from looseleaf.cli.comparison_output import show, write_report, write_tables
    from looseleaf.replay.blind_spots import blind_spots
    from looseleaf.replay.extent import measure
    from looseleaf.replay.goodput import Slo
    from looseleaf.replay.matrix import run_matrix
    from looseleaf.replay.report import Comparison
    from looseleaf.replay.settings import AXES, Settings, combinations, default_comparison
    from looseleaf.replay.store import ResultStore, default_folder
    from looseleaf.replay.system import build_system

    target = None if slo is None else Slo.parse(slo)
    if target is not None and forget_requests:
        raise ConfigurationError("--slo counts single requests, and --forget-requests keeps none.")
    varied = sweep.varied()
    store = ResultStore(results or default_folder())
    source = reading.source(trace)
    extent = measure(source)
    longest = extent.model_len if max_model_len is None else max_model_len
    serving = build_system(
        system.model,
        system.hardware,
        cost=system.cost,
        kv_cache_dtype=system.kv_cache_dtype,
        tensor_parallel=system.tensor_parallel_size,
        memory_utilization=system.memory_utilization,
    )
    pool = varied.pop("pool_tokens", None) or [serving.pool_tokens]
    base = Settings(
        pool_tokens=pool[0],
        max_model_len=longest,
        isolate_tenants=isolate_tenants,
    )
    base = replace(base, **{name: values[0] for name, values in varied.items()})
    several = {name: values for name, values in {**varied, "pool_tokens": pool}.items() if len(values) > 1}
    if compare and several:
        raise ConfigurationError(
            f"--compare has values of its own, and {', '.join(AXES[name].flag for name in several)} would be compared "
            "too.",
            hint="Give one value each with --compare, or leave it out.",
        )
    settings = default_comparison(base, shares=extent.shares) if compare else combinations(base, several)
    try:
        with _progress(len(settings), shown=not output.quiet) as progress:
            cells = run_matrix(
                source,
                settings,
                serving.cost,
                store,
                keep_requests=not forget_requests,
                fresh=fresh,
                processes=processes,
                progress=progress,
            )
    except KeyboardInterrupt:
        identity = source.identity()
        kept = sum(
            store.has(store.key(identity, each, serving.cost, keep_requests=not forget_requests)) for each in settings
        )
        note(
            f"{kept} of {len(settings)} cells are finished and kept in {store.folder}; the same command goes on there."
        )
        raise
    comparison = Comparison(
        cells,
        title=f"Replay of {source.name}",
        lead=[*extent.lines(), serving.title, _common(settings)],
        warnings=[*extent.warnings, *serving.warnings, *blind_spots(cells, shares=extent.shares), *_refusals(cells)],
        slo=target,
        made_by=f"Looseleaf {__version__}",
    )
    show(comparison, output)
    if html is not None:
        write_report(comparison, html)
    if parquet is not None:
        write_tables(comparison, parquet)
    if all(cell.outcome is None for cell in cells):
        raise ConfigurationError(f"No cell could be replayed. {cells[0].refusal}")


def _common(settings: Sequence[Any]) -> str:
    """What all cells have in common."""
    from looseleaf.replay.settings import AXES

    alike = []
    for axis in AXES.values():
        values = {getattr(each, axis.name) for each in settings}
        if len(values) == 1:
            alike.append(f"{axis.title} {axis.show(values.pop())}")
    alike.append(f"longest sequence {settings[0].max_model_len:,}")
    return f"In all cells: {', '.join(alike)}."


def _refusals(cells: Sequence[Cell]) -> Iterator[str]:
    for cell in cells:
        if cell.outcome is not None and (refused := cell.outcome.totals["refused"]):
            yield (
                f"{counted(refused, 'request')} could never run in {cell.settings.allocator} memory of "
                f"{cell.settings.pool_tokens:,} tokens and were left out."
            )


@contextmanager
def _progress(total: int, *, shown: bool) -> Iterator[Callable[[Sequence[float]], None] | None]:
    """A bar on stderr, drawn only where somebody looks."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"Replaying {counted(total, 'cell')}", total=total)

        def advance(done: Sequence[float]) -> None:
            finished = sum(share >= 1 for share in done)
            progress.update(task, completed=sum(done), description=f"{finished} of {counted(total, 'cell')}")

        yield advance
