"""A connection: uvicorn's, with limits on how many there are, on the headers' size, and on every time it can hang."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from looseleaf.server.handlers.sse import DIRECT_BODY
from looseleaf.server.protocol.errors import ApiError
from looseleaf.server.settings import ConnectionLimits


def limited_connection(limits: ConnectionLimits) -> type[HttpToolsProtocol]:
    """The protocol class for uvicorn."""
    return type("LimitedConnection", (_LimitedConnection,), {"limits": limits})


class _LimitedConnection(HttpToolsProtocol):
    limits: ConnectionLimits

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._unread: int | None = None
        """Bytes that the client had not taken when the write timer was set; None: more could still be added."""
        self._in_headers = True
        self._header_bytes = self._piece = 0
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse(503, f"The server has {self.limits.max_connections} connections, which is all it takes.")
            return
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._piece = len(data)
        if self._in_headers:
            # One header without end is seen here, many in a piece below.
            self._header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._header_bytes > self.limits.max_header_bytes and not self.transport.is_closing():
            self._refuse_headers()

    def on_message_begin(self) -> None:
        if self._refused:
            return
        if self.cycle is not None and not self.cycle.response_complete:
            # Sent before the answer to the one before is complete. While it waited, nobody would notice that the client
            # leaves, so it is not taken: the answer in progress ends the connection, and the client may ask anew.
            self._refused, self.cycle.keep_alive = True, False
            return
        super().on_message_begin()
        if not self._in_headers:
            self._in_headers, self._header_bytes = True, self._piece
            self._start_timer()
        self._size = 0

    def on_url(self, url: bytes) -> None:
        if not self._refused:
            self._size += len(url)
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._refused:
            return
        self._size += len(name) + len(value)
        if self._in_headers or self._size <= self.limits.max_header_bytes:
            super().on_header(name, value)
        else:
            self._refuse_headers()  # trailers: what comes after a body in pieces

    def on_headers_complete(self) -> None:
        if self._refused:
            return
        self._in_headers = False
        self._stop_timer()
        if self._size > self.limits.max_header_bytes:
            self._refuse_headers()
        if not self._refused:
            super().on_headers_complete()
            if self.cycle is not None:
                extensions: dict[str, Any] = {DIRECT_BODY: _ChunkedBody(self.cycle)}
                self.scope["extensions"] = extensions

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            if self.cycle.response_complete:
                self._stop_timer()
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_writing()
        if self.cycle.more_body and not self.transport.is_closing():
            self._start_timer(self._close)  # the rest of the body is dropped, but not for ever

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_write_timer()
        self._watch_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()
        self._watch_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_writing()

    def shutdown(self) -> None:
        super().shutdown()
        self._watch_writing()

    def _close(self) -> None:
        self.transport.close()
        self._watch_writing()

    def _watch_writing(self) -> None:
        """Until all that was written has been taken, or nothing is for too long: then the connection is ended."""
        if self._write_timer is None and (unread := self.transport.get_write_buffer_size()):
            self._unread = unread if self.flow.write_paused or self.transport.is_closing() else None
            self._write_timer = self.loop.call_later(self.limits.write_timeout, self._check_writing)

    def _check_writing(self) -> None:
        self._write_timer = None
        if self._unread is not None and self.transport.get_write_buffer_size() >= self._unread:
            self.transport.abort()
        else:
            self._watch_writing()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _refuse_headers(self) -> None:
        self._refuse(431, f"The headers are longer than {self.limits.max_header_bytes} bytes.")

    def _time_out(self) -> None:
        self._timer = None
        if self._header_bytes:
            self._refuse(408, f"The headers did not arrive within {self.limits.header_timeout:g} s.")
        else:
            self._refused = True
            self._close()  # nothing was asked

    def _refuse(self, status: int, message: str) -> None:
        self._refused = True
        self._stop_timer()
        if self.transport.is_closing():
            return
        error = ApiError(status, message, code=_CODES[status])
        body = json.dumps(error.body()).encode()
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self.transport.write(head.encode() + b"\r\nconnection: close\r\n\r\n" + body)
        self._close()

    def _start_timer(self, at_end: Callable[[], None] | None = None) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.limits.header_timeout, self._wait_once_more, at_end or self._time_out)

    def _wait_once_more(self, at_end: Callable[[], None]) -> None:
        """What came in time may not have been read yet, if this process was too busy."""
        self._timer = self.loop.call_later(_GRACE_SECONDS, at_end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _ChunkedBody:
    """A response's body as `DirectBody` offers it."""

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    def ready(self) -> bool:
        cycle = self._cycle
        return (
            cycle.response_started
            and cycle.chunked_encoding is True
            and not (cycle.response_complete or cycle.disconnected or self._flow.write_paused)
        )

    def write(self, data: bytes) -> None:
        if data:  # an empty chunk would be the end
            self._write(b"%x\r\n%b\r\n" % (len(data), data))


_GRACE_SECONDS = 0.1
_CODES = {408: "header_timeout", 431: "headers_too_large", 503: "too_many_connections"}
_REASONS = {408: "Request Timeout", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}
