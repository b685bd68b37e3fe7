"""Trace files as bytes and lines, compressed or not."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import zstandard

from looseleaf.replay.errors import InvalidTrace

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
LONGEST_LINE = 1 << 28
"""Bytes; what has longer lines is no file of lines."""
PIECE = 1 << 17
HEAD = 1 << 22
"""Bytes that the format is told by."""


@contextmanager
def open_source(path: Path) -> Iterator[IO[bytes]]:
    """The content of a file, unpacked. Raises `InvalidTrace` where it cannot be read, then or while it is read."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            file.seek(0)
            if magic.startswith(GZIP):
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield io.BufferedReader(unpacked)
            elif magic == ZSTD:
                yield io.BufferedReader(_Zstandard(file))
            else:
                yield file
    except FileNotFoundError:
        raise InvalidTrace(f"There is no file {path}.", hint="Check the name of the trace.") from None
    except (EOFError, zlib.error, zstandard.ZstdError) as error:
        raise InvalidTrace(f"{path} ends early or is damaged: {error}.", hint="Copy or download it again.") from error
    except OSError as error:
        raise InvalidTrace(f"{path} cannot be read: {error.strerror or error}.") from error


class _Zstandard(io.RawIOBase):
    """The frames of a file, unpacked. Unlike the library's own reader, it raises `EOFError` where the last is cut."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # a buffer of bytes
        while not self._ready:
            packed = self._frame.unused_data if self._frame.eof else b""
            packed = packed or self._file.read(PIECE)
            if not packed:
                if not self._frame.eof:
                    raise EOFError("the last frame is not whole")
                return 0
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._ready = memoryview(self._frame.decompress(packed))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def read_head(path: Path) -> bytes:
    """The first `HEAD` bytes."""
    with open_source(path) as source:
        return source.read(HEAD)


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, without their ends, counted from 1."""
    with open_source(path) as source:
        number = 0
        while line := source.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                raise InvalidTrace(f"Line {number} of {path} is longer than {LONGEST_LINE >> 20} MiB.")
            if line := line.strip():
                yield number, line
