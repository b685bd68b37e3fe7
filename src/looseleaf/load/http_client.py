"""HTTP/1.1 for a load generator: it costs little, and notes when bytes arrive, not when somebody comes to read them."""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools

from looseleaf.errors import InvalidRequest

CONNECT_SECONDS = 10.0


class Reader(Protocol):
    """Is told what arrives of an answer, and when (`time.perf_counter`)."""

    def on_status(self, status: int) -> None: ...
    def on_body(self, data: bytes, now: float) -> None: ...


class HttpClient:
    """Connections to one server, each carrying one request at a time. For one event loop."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        """Raises `InvalidRequest` for what is no address."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in ("http", "https") or not parts.hostname or (port is None and ":" in parts.netloc[-6:]):
            raise InvalidRequest(f"{url!r} is no address of a server.", hint="Write for example http://127.0.0.1:8000.")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._address = (parts.hostname, port or (443 if self._tls else 80))
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        self._headers = f"Host: {parts.netloc.rpartition('@')[2]}\r\nAccept: */*\r\n{authorization}"
        self._idle: list[_Connection] = []
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._base}"

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body. Raises `OSError`."""
        whole = _Whole()
        await self._exchange(f"GET {self._base}{path} HTTP/1.1\r\n{self._headers}\r\n".encode(), whole)
        return whole.status, bytes(whole.body)

    async def post(self, path: str, body: bytes, reader: Reader) -> None:
        """Returns when the answer is complete. Raises `OSError` if it breaks off."""
        head = (
            f"POST {self._base}{path} HTTP/1.1\r\n{self._headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        await self._exchange(head.encode() + body, reader)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    async def _exchange(self, request: bytes, reader: Reader) -> None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                break
        else:
            connection = await self._connect()
        reusable = False
        try:
            reusable = await connection.exchange(request, reader)
        finally:
            if reusable:
                self._idle.append(connection)
            else:
                connection.close()

    async def _connect(self) -> _Connection:
        host, port = self._address
        async with asyncio.timeout(CONNECT_SECONDS):
            _, connection = await asyncio.get_running_loop().create_connection(_Connection, host, port, ssl=self._tls)
        return connection


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._reader: Reader | None = None
        self._complete: asyncio.Future[bool] | None = None
        self._now = 0.0
        self.is_open = False

    async def exchange(self, request: bytes, reader: Reader) -> bool:
        """Whether the connection can be used again."""
        assert self._transport is not None
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._complete = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._complete

    def close(self) -> None:
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of that class
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        if self._parser is None or self._complete is None or self._complete.done():
            self.close()  # nothing was asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ConnectionError(f"no HTTP: {error}"))
            self.close()

    def eof_received(self) -> None:
        self.is_open = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._end(ConnectionError(str(exc) if exc else "connection closed"))

    def on_headers_complete(self) -> None:
        assert self._reader is not None
        assert self._parser is not None
        self._reader.on_status(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        assert self._reader is not None
        self._reader.on_body(body, self._now)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        if self._complete is not None and not self._complete.done():
            self._complete.set_result(self._parser.should_keep_alive() and self.is_open)

    def _end(self, error: ConnectionError) -> None:
        if self._complete is not None and not self._complete.done():
            self._complete.set_exception(error)


class _Whole:
    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()

    def on_status(self, status: int) -> None:
        self.status = status

    def on_body(self, data: bytes, _now: float) -> None:
        self.body += data
