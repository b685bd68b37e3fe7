"""What every command has in common: option groups become options, and errors become messages and exit codes."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

import typer
from rich.text import Text

from looseleaf.cli.consoles import log_to_stderr, stderr
from looseleaf.cli.options import OutputOptions
from looseleaf.errors import LooseleafError

UNEXPECTED, BAD_INPUT = 1, 2
INTERRUPTED, BROKEN_PIPE = 128 + signal.SIGINT, 128 + signal.SIGPIPE
"""Exit codes; 0 when all went well."""


def command(app: typer.Typer, name: str, *, omit: Collection[str] = ()) -> Callable[[Callable[..., None]], None]:
    """Register a function as the command `name`.

    A parameter whose type is a dataclass stands for the options that are the fields of it, without those named in
    `omit`, which keep their defaults, and those for which the command has a parameter of its own.
    """

    def register(function: Callable[..., None]) -> None:
        hints = get_type_hints(function, include_extras=True)
        given = inspect.signature(function).parameters.values()
        groups = {p.name: hints[p.name] for p in given if is_dataclass(hints[p.name])}
        own = [p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY) for p in given if p.name not in groups]
        hidden = {*omit, *(p.name for p in own)}
        parameters = {group: _parameters(cls, hidden) for group, cls in groups.items()}

        @wraps(function)
        def run(**values: Any) -> None:
            arguments = {
                group: cls(**{p.name: values.pop(p.name) for p in parameters[group]}) for group, cls in groups.items()
            }
            output = next((each for each in arguments.values() if isinstance(each, OutputOptions)), OutputOptions())
            log_to_stderr(quiet=output.quiet)
            with _reported_errors(debug=output.debug):
                function(**arguments, **values)
                sys.stdout.flush()

        flat = [*own, *(p for group in parameters.values() for p in group)]
        run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]  # what Typer reads
        run.__annotations__ = {p.name: p.annotation for p in flat}
        app.command(name)(run)

    return register


def _parameters(group: type, hidden: Collection[str]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
        if field.name not in hidden
    ]


@contextmanager
def _reported_errors(*, debug: bool) -> Iterator[None]:
    """Turns what a command raises into a message on stderr and an exit code."""
    try:
        yield
    except (typer.Exit, typer.BadParameter):
        raise
    except (Exception, KeyboardInterrupt) as error:
        raise typer.Exit(_report(error, debug=debug)) from error


def _report(error: BaseException, *, debug: bool) -> int:
    if isinstance(error, KeyboardInterrupt):
        stderr().print("Interrupted.")
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # Whoever read our output has seen enough. What is still buffered must not fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    if debug:
        trace = "".join(traceback.format_exception(error))
        stderr().print(trace, markup=False, soft_wrap=True)
    if isinstance(error, LooseleafError):
        report(error.message, error.hint)
        return BAD_INPUT
    report(
        f"unexpected {type(error).__name__}: {error}",
        "" if debug else "Run it again with --debug to see where it comes from.",
    )
    return UNEXPECTED


def report(message: str, hint: str) -> None:
    """What happened, and what to do about it."""
    console = stderr()
    console.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
    if hint:
        console.print(Text.assemble(("hint: ", "bold"), hint), soft_wrap=True)
