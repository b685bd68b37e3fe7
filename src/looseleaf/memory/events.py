"""One typed stream of what happens to blocks, for replays, metrics and the web page."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.interface import Blocks, SequenceId, SequenceIds

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryEvent:
    """One operation on `blocks`; `sequences` and `requests` are parallel to them (a batched operation serves many).

    Applied in order, the events of a manager rebuild all its block tables and reference counts. Where rounding makes
    a contiguous region longer than a table's row, the events name all of it: the row is the beginning.
    """

    step: int
    blocks: Blocks
    sequences: SequenceIds
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Allocate(MemoryEvent):
    """Free blocks were appended to the tables of their sequences."""


@dataclass(frozen=True, slots=True, eq=False)
class Share(MemoryEvent):
    """Blocks were appended to the table of a sequence that now holds them too: a fork of `parent`, or (-1) a new one
    that found them in the prefix cache."""

    parent: SequenceId


@dataclass(frozen=True, slots=True, eq=False)
class Register(MemoryEvent):
    """The blocks of these sequences can be found by their tokens from now on."""


@dataclass(frozen=True, slots=True, eq=False)
class Evict(MemoryEvent):
    """The content of cached blocks was given up, to hand the blocks to someone else; no sequence held them."""


@dataclass(frozen=True, slots=True, eq=False)
class Copy(MemoryEvent):
    """Free `blocks` were taken and receive the content of `sources`.

    A block takes the place of its source in the table of a sequence that held it (copy-on-write), and is
    appended to the table otherwise (a fork in contiguous memory).
    """

    sources: Blocks


@dataclass(frozen=True, slots=True, eq=False)
class Free(MemoryEvent):
    """Sequences gave up the last blocks of their tables; `returned` marks those that nobody else held."""

    returned: NDArray[np.bool_]


Listener: TypeAlias = Callable[[MemoryEvent], None]


class EventStream:
    """Delivers each event to every listener, after the transaction that it tells of is complete.

    True when anyone listens: managers build no event otherwise.
    """

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Raises ValueError when `listener` is not subscribed."""
        self._listeners.remove(listener)

    def emit(self, event: MemoryEvent) -> None:
        """A listener that raises is logged and unsubscribed: the caller needs the result of its transaction."""
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:
                logger.exception("A memory event listener failed on %s and was unsubscribed", type(event).__name__)
                if listener in self._listeners:
                    self._listeners.remove(listener)
