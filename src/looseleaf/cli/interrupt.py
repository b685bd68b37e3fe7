"""Ctrl-C as a wish that is honoured between two steps, so that it never cuts through one."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class Interrupt:
    """Inside the block Ctrl-C sets `requested` and does nothing else, however often it is pressed."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, _signal: int, _frame: FrameType | None) -> None:
        self.requested = True
