"""`looseleaf trace`: what a request trace is like, and traces in one format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from looseleaf.cli.command import command
from looseleaf.cli.consoles import counted, note, stdout, warn, write
from looseleaf.cli.options import OutputOptions
from looseleaf.cli.trace_options import ReadingOptions, TraceText
from looseleaf.errors import InvalidRequest


def register(app: typer.Typer) -> None:
    traces = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Request traces: see what one is like, or put it into one format.",
    )
    command(traces, "describe")(describe)
    command(traces, "convert")(convert)
    app.add_typer(traces, name="trace")


def describe(
    trace: TraceText,
    reading: ReadingOptions,
    output: OutputOptions,
    plot: Annotated[bool, typer.Option("--plot", help="Draw lengths and the course of time, too.")] = False,
    block_size: Annotated[
        int | None,
        typer.Option(help="Of the hit rates. Default: the unit in which the trace tells what is shared, or 16.", min=1),
    ] = None,
    window: Annotated[
        float, typer.Option(help="Seconds for which a token belongs to the working set after its use.")
    ] = 60.0,
) -> None:
    """Say what a trace is like: lengths, burstiness, reuse, and the working set over time.

    looseleaf trace describe requests.jsonl.gz --plot

    looseleaf trace describe n=10000,arrivals=onoff:20:10:30,lengths=sharegpt,system=512x4
    """
    if not window > 0:
        raise InvalidRequest(f"--window is {window:g}.", hint="It must be more than 0 seconds.")

    from looseleaf.replay.describe import describe as read

    described = read(reading.open(trace), block_size=block_size, window=window)
    if output.json:
        write(json.dumps(described.to_dict(), indent=2) + "\n")
        return

    from looseleaf.cli.trace_drawing import draw, draw_plots

    console = stdout()
    for part in [*draw(described), *(draw_plots(described, console.width) if plot else [])]:
        console.print(part, soft_wrap=isinstance(part, str), markup=False)


def convert(
    trace: TraceText,
    reading: ReadingOptions,
    output: OutputOptions,
    to: Annotated[Path, typer.Option("--to", metavar="FILE.parquet", help="The file to write.")],
) -> None:
    """Write a trace as Parquet: one table, in order of arrival, that every command reads at once.

    looseleaf trace convert AzureLLMInferenceTrace_conv.csv --to azure.parquet
    """
    from looseleaf.replay.readers.parquet import write_parquet

    found = reading.open(trace)
    write_parquet(found, to)
    for each in found.origin.skipped:
        warn(f"Left out: {counted(each.count, 'line')}: {each.reason}, the first in line {each.first_line}.")
    for remark in found.origin.notes:
        note(remark)
    about = {"file": str(to), "requests": found.num_requests, "format": found.origin.format, "unit": found.unit}
    write(json.dumps(about) + "\n" if output.json else f"{to}: {counted(found.num_requests or 0, 'request')}\n")
