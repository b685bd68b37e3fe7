"""HTTP by hand, so that a client can misbehave at any point; and what a well-behaved one gets, put together."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from looseleaf.kernels import native

SECONDS = 600
"""For whatever ends at all."""


def head(path: str, length: int, *more: str, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {length}", *more, "", ""]).encode()


def message(path: str, body: Any, *more: str) -> bytes:
    """A whole request. `body`: bytes as they are, anything else as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head(path, len(content), *more) + content


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, content: bytes) -> None:
        self.writer.write(content)
        await self.writer.drain()

    async def read_event(self) -> str:
        """The next event of a stream; "" at its end."""
        while line := await self.reader.readline():
            if line.startswith(b"data: "):
                return line[6:].decode().rstrip()
        return ""

    def reset(self) -> None:
        """Close it the rude way: the server gets no orderly end but an error."""
        connected = self.writer.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connection]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 24)
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str | None:
        """Of the error object, which every answer that is no 200 has."""
        code: str | None = json.loads(self.body)["error"]["code"]
        return code


async def ask(url: str, path: str, body: Any = None, *more: str, method: str = "POST") -> Answer:
    """A whole exchange on a connection of its own."""
    async with asyncio.timeout(SECONDS), connected(url) as connection:
        if method == "POST":
            await connection.send(message(path, body, "Connection: close", *more))
        else:
            await connection.send(head(path, 0, "Connection: close", *more, method=method))
        return await read_answer(connection.reader)


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    first = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in first[1:] if line)}
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers["content-length"]))
    return Answer(int(first[0].split()[1]), headers, body)


@dataclass
class Choice:
    text: str = ""
    logprobs: list[Any] = field(default_factory=list)
    finish: tuple[Any, Any] | None = None


def put_together(answer: Answer) -> tuple[dict[int, Choice], dict[str, int]]:
    """What an answer says, whether it came whole or in pieces: its choices, and its usage."""
    assert answer.status == 200, answer.body
    if answer.headers["content-type"].startswith("text/event-stream"):
        events = [event.removeprefix("data: ") for event in answer.body.decode().split("\n\n") if event]
        assert events.pop() == "[DONE]"
        pieces = [json.loads(event) for event in events]
    else:
        pieces = [json.loads(answer.body)]
    choices: dict[int, Choice] = defaultdict(Choice)
    usage: dict[str, int] = {}
    for piece in pieces:
        assert "error" not in piece, piece
        usage = piece.get("usage") or usage
        for part in piece["choices"]:
            _add(choices[part["index"]], part)
    assert all(choice.finish is not None for choice in choices.values())
    return dict(choices), {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}


def _add(choice: Choice, part: dict[str, Any]) -> None:
    assert choice.finish is None
    said = part.get("delta") or part.get("message") or part
    choice.text += said.get("text") or said.get("content") or ""
    if rated := part.get("logprobs"):
        # The values are exact where the kernels are; the reference only nearly.
        values = rated["content"] if "content" in rated else rated["token_logprobs"]
        choice.logprobs += values if native.is_chosen() else [None] * len(values)
    if part["finish_reason"] is not None:
        choice.finish = part["finish_reason"], part.get("stop_reason")
