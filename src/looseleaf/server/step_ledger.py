"""Which requests the engine is working on at this moment, and where in them, written where it outlives its process.

A message could be lost with the process that sends it; memory mapped from a file cannot.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import msgspec

_LENGTH = struct.Struct("<Q")
_ADDING = -1
_BYTES = 1 << 22
"""Far more than the ids of one step take; a sparse file, so what is not used costs nothing."""


class StepLedger:
    """The engine's side."""

    def __init__(self, path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(_BYTES)
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _BYTES)
        self._encoder = msgspec.msgpack.Encoder()

    def begin(self, places: dict[str, int]) -> None:
        """From now on the process works on these requests, until `end`; by request, how far it has come."""
        encoded = self._encoder.encode(places)[: _BYTES - _LENGTH.size]
        self._memory[_LENGTH.size : _LENGTH.size + len(encoded)] = encoded
        _LENGTH.pack_into(self._memory, 0, len(encoded))

    def end(self) -> None:
        _LENGTH.pack_into(self._memory, 0, 0)

    @contextmanager
    def adding(self, request_id: str) -> Iterator[None]:
        self.begin({request_id: _ADDING})
        yield
        self.end()

    def __enter__(self) -> StepLedger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._memory.close()


def read_ledger(path: Path) -> dict[str, int]:
    """What a process that has ended was working on; nothing if it was between steps."""
    with suppress(OSError, struct.error, msgspec.MsgspecError):
        content = path.read_bytes()
        (length,) = _LENGTH.unpack_from(content)
        if length:
            return msgspec.msgpack.decode(content[_LENGTH.size : _LENGTH.size + length], type=dict[str, int])
    return {}
