"""How a line of the server's log looks, whichever process writes it: JSON or text, with time, level and source.

Imports nothing that takes time: the engine's process starts with it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TextIO

from looseleaf.server.log_stream import BackgroundStream

LogFormat = Literal["text", "json"]
Source = Literal["front", "engine"]
LOGGER = "looseleaf"


class LineFormatter(logging.Formatter):
    def __init__(self, format: LogFormat, source: Source) -> None:
        super().__init__()
        self._format = format
        self._source = source

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "timestamp": timestamp(record.created),
            "level": record.levelname.lower(),
            "source": self._source,
            "event": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return render(fields, self._format)


@contextmanager
def logs_written(
    stream: TextIO, *, format: LogFormat, source: Source, level: str, on_loss: Callable[[], None]
) -> Iterator[BackgroundStream]:
    """Meanwhile the package's log goes there, and nowhere else. The value takes further lines."""
    background = BackgroundStream(stream, on_loss)
    handler = logging.StreamHandler(background)
    handler.setFormatter(LineFormatter(format, source))
    logger = logging.getLogger(LOGGER)
    before = logger.handlers[:], logger.level
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    try:
        yield background
    finally:
        background.close()
        logger.handlers[:] = before[0]
        logger.setLevel(before[1])


def render(fields: Mapping[str, Any], format: LogFormat) -> str:
    """One line; in text an exception's lines follow."""
    if format == "json":
        return json.dumps(fields, default=repr, ensure_ascii=False)
    rest = dict(fields)
    head = f"{rest.pop('timestamp')} {rest.pop('level').upper()} {rest.pop('source')}: {rest.pop('event')}"
    exception = rest.pop("exception", None)
    line = " ".join([head, *(f"{name}={value if _is_plain(value) else repr(value)}" for name, value in rest.items())])
    return line if exception is None else f"{line}\n{exception}"


def timestamp(seconds: float) -> str:
    """Unix time → ISO 8601 in UTC, to the millisecond."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03}Z"


def _is_plain(value: object) -> bool:
    return not isinstance(value, str) or (value.isprintable() and value != "" and not set(value) & set(" =\"'"))
