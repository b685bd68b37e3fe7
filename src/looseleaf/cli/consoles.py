"""Where commands print: results on stdout, everything about them on stderr."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

from rich.console import Console
from rich.text import Text

logger = logging.getLogger("looseleaf")


class _ResultConsole(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # as `write` does; Rich's own way ends the program with a code of its own


def stdout() -> Console:
    """Colour on a terminal, plain text elsewhere; honours NO_COLOR."""
    return _ResultConsole(highlight=False)


def stderr() -> Console:
    return Console(stderr=True, highlight=False)


def write(text: str) -> None:
    """A piece of a result, as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """A remark about a result: on stderr, unless --quiet."""
    logger.info("%s", text)


def warn(text: str) -> None:
    """What the user must know of a result: on stderr, even with --quiet."""
    logger.warning("%s", text)


def counted(count: int, noun: str) -> str:
    """(2, "answer") → "2 answers"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class _ConsoleHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        with suppress(OSError, ValueError):  # a full disk or a closed pipe: what is logged must not fail for that
            stderr().print(Text(self.format(record), style=style), soft_wrap=True)


def log_to_stderr(*, quiet: bool) -> None:
    """Let the package's log speak on stderr: what the engine says at start, unless `quiet`, and warnings."""
    for handler in [each for each in logger.handlers if isinstance(each, _ConsoleHandler)]:
        logger.removeHandler(handler)
    logger.addHandler(_ConsoleHandler())
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
