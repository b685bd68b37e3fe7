"""`looseleaf`: the commands, and what they share. Each command's engine is imported when it runs, not before."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated

import typer

from looseleaf.cli.waiting import limit_spinning
from looseleaf.server import early_engine


def _show_version(value: bool) -> None:
    if value:
        from looseleaf import __version__

        typer.echo(f"looseleaf {__version__}")
        raise typer.Exit


_COMMANDS = (
    "generate",
    "chat",
    "serve",
    "bench",
    "show_memory",
    "plan",
    "replay",
    "trace",
    "calibrate",
    "explain_log",
    "quality",
    "models",
    "env",
)
"""The modules, in the order of `looseleaf --help`."""


def make_app(command: str = "") -> typer.Typer:
    """With that command alone if there is one of this name: what the others import would only make it wait."""
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

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and leave.", callback=_show_version, is_eager=True)
        ] = False,
    ) -> None: ...

    module = command.replace("-", "_")
    for each in (module,) if module in _COMMANDS else _COMMANDS:
        import_module(f"looseleaf.cli.{each}").register(app)
    return app


def main() -> None:
    limit_spinning()
    if sys.argv[1:2] == ["serve"] and not {"-h", "--help"} & set(sys.argv):
        early_engine.begin()
    make_app(*sys.argv[1:2])()
