"""Server-sent events, and ends of answers whose reader has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing, suppress
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from looseleaf.server.protocol.errors import api_error

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
DIRECT_BODY = "looseleaf.direct_body"
"""The extension of the ASGI scope with a connection's `DirectBody`."""
_encode = msgspec.json.Encoder().encode


class DirectBody(Protocol):
    """Writes a part of a response's body past ASGI's `send`, at once or not at all."""

    def ready(self) -> bool:
        """Whether the body has begun, nothing is waiting to be written, and somebody reads."""

    def write(self, data: bytes) -> None: ...


def direct_body(scope: Scope) -> DirectBody | None:
    """That of the connection, if it has one."""
    body: DirectBody | None = scope.get("extensions", {}).get(DIRECT_BODY)
    return body


class ClientGone(Exception):
    """Nobody reads the answer any more."""


def json_bytes(value: Any) -> bytes:
    return _encode(value)


def event(value: Any) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, but cancel it and raise `ClientGone` if the client disconnects first. The body has been read."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Sends `chunks` as they come. The status is sent with the first one: what goes wrong before is an ordinary error,
    what goes wrong after an event with an error object."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, chunks: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._chunks = chunks

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._chunks):
            with suppress(ClientGone, OSError):
                await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        try:
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except OSError:
            raise
        except Exception as error:
            await send({"type": "http.response.body", "body": event(api_error(error).body()), "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})


async def stream(receive: Receive, chunks: AsyncGenerator[bytes, None]) -> Response:
    """The response, once there is a first chunk; raises what comes instead of one."""
    try:
        first = await unless_gone(receive, anext(chunks))
    except BaseException:
        await chunks.aclose()
        raise
    return EventStream(first, chunks)
