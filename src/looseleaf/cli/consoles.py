"""Where commands print: results on stdout, everything about them on stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

logger = logging.getLogger("looseleaf")


def stdout() -> Console:
    """Colour on a terminal, plain text elsewhere; honours NO_COLOR."""
    return Console(highlight=False)


def stderr() -> Console:
    return Console(stderr=True, highlight=False)


def write(text: str) -> None:
    """A piece of a result, as it is."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """A remark about a result: on stderr, unless --quiet."""
    logger.info("%s", text)


class _ConsoleHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        stderr().print(Text(self.format(record), style=style), soft_wrap=True)


def log_to_stderr(*, quiet: bool) -> None:
    """Let the package's log speak on stderr: what the engine says at start, unless `quiet`, and warnings."""
    for handler in [each for each in logger.handlers if isinstance(each, _ConsoleHandler)]:
        logger.removeHandler(handler)
    logger.addHandler(_ConsoleHandler())
    logger.setLevel(logging.WARNING if quiet else logging.INFO)


@contextmanager
def only_warnings() -> Iterator[None]:
    """Keep the log's remarks back for a while."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
