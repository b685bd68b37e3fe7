"""`looseleaf`: the commands, and what they share. Each command's engine is imported when it runs, not before."""

from __future__ import annotations

from typing import Annotated

import typer

from looseleaf import __version__
from looseleaf.cli import (
    bench,
    calibrate,
    chat,
    env,
    explain_log,
    generate,
    models,
    plan,
    quality,
    replay,
    serve,
    show_memory,
    trace,
)
from looseleaf.cli.waiting import limit_spinning

app = typer.Typer(
    name="looseleaf",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Run language models out of a paged KV cache, and see where its memory goes.\n\n"
    'Start with [bold]looseleaf generate --prompt "What is the capital of France?"[/]: the default model is '
    "downloaded once. Then try [bold]looseleaf chat[/] and [bold]looseleaf show-memory[/].",
    epilog="Exit codes: 0 done, 2 bad input (the message says what to do), 130 interrupted, 1 anything else.",
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"looseleaf {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_show_version, is_eager=True)
    ] = False,
) -> None: ...


generate.register(app)
chat.register(app)
serve.register(app)
bench.register(app)
calibrate.register(app)
replay.register(app)
show_memory.register(app)
quality.register(app)
plan.register(app)
explain_log.register(app)
trace.register(app)
models.register(app)
env.register(app)


def main() -> None:
    limit_spinning()
    app()
