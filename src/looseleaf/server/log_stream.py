"""Where log lines go. Nobody waits for them, and a line that cannot be written is counted and fails nobody.

Imports nothing that takes time: the engine's process starts with it.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, TextIO

_CAPACITY = 10_000
"""Lines that may wait to be written."""
_LAST_LINES_SECONDS = 1.0


class LogSink(Protocol):
    """What takes lines."""

    def write(self, text: str, /) -> int: ...
    def flush(self) -> None: ...


class LossyStream:
    """Writes lines to a stream; what cannot be written is told to `on_loss`, not raised."""

    def __init__(self, stream: LogSink, on_loss: Callable[[], None]) -> None:
        self._stream = stream
        self._on_loss = on_loss

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self._on_loss()
            return 0

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._on_loss()


class LostRecords:
    """How many there were."""

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        self.count += 1


class BackgroundStream:
    """A thread writes its lines, so that a terminal, a pipe or a disk that takes none holds nobody up."""

    def __init__(self, stream: TextIO, on_loss: Callable[[], None], capacity: int = _CAPACITY) -> None:
        """`on_loss` is called for a line that has no room, and by the thread for one that cannot be written."""
        self._stream = stream
        self._on_loss = on_loss
        self._lines: queue.Queue[str | None] = queue.Queue(capacity)
        try:
            # Not through Python's buffer: a thread that hangs in there would hang the interpreter's end.
            self._file: int | None = os.dup(stream.fileno())
        except (OSError, ValueError, AttributeError):
            self._file = None
        self._given_up = False
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self._on_loss()
        return len(text)

    def flush(self) -> None:
        """Lines are on their way as it is."""

    def close(self) -> None:
        """Write what is left, unless that takes long."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(_LAST_LINES_SECONDS)
        self._given_up = True

    def _run(self) -> None:
        while (line := self._lines.get()) is not None and not self._given_up:
            try:
                self._write(line)
            except (OSError, ValueError):
                self._on_loss()
        if self._file is not None:
            os.close(self._file)

    def _write(self, line: str) -> None:
        if self._file is None:
            self._stream.write(line)
            return
        rest = line.encode("utf-8", "backslashreplace")
        while rest:
            rest = rest[os.write(self._file, rest) :]
