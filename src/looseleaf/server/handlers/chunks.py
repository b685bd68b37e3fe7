"""Writes the chunks of one stream. The common chunk, a bit of text, costs one JSON string and a concatenation."""

from __future__ import annotations

from typing import Any

from looseleaf.server.handlers.sse import json_bytes


class ChunkWriter:
    """`head` are the fields that all chunks share; `opening` and `closing` what surrounds the text in a choice."""

    __slots__ = ("_closing", "_end", "_opening", "_openings", "_start")

    def __init__(self, head: dict[str, Any], opening: str, closing: str, *, include_usage: bool) -> None:
        self._start = b"data: " + json_bytes(head)[:-1] + b',"choices":['
        # With usage asked for, each chunk has the field and the last one its value.
        self._end = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"
        self._opening = opening
        self._closing = closing.encode() + self._end
        self._openings: dict[int, bytes] = {}

    def text(self, index: int, text: str) -> bytes:
        opening = self._openings.get(index)
        if opening is None:
            opening = self._openings[index] = self._start + b'{"index":%d,' % index + self._opening.encode()
        return opening + json_bytes(text) + self._closing

    def choice(self, choice: dict[str, Any]) -> bytes:
        return self._start + json_bytes(choice) + self._end

    def usage(self, usage: dict[str, Any]) -> bytes:
        return self._start + b'],"usage":' + json_bytes(usage) + b"}\n\n"
