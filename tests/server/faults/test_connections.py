"""Connections that are slow, half open, endless or no HTTP: each ends in its time, and others are served."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from server.faults.faulty_server import FaultyServer
from server.faults.load import COMPLETIONS
from server.faults.raw_http import Connection, ask, connected, head, message, read_answer

SHORT = {"prompt": [1, 2, 3], "max_tokens": 2}
GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,  # a TLS client
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x00" * 1000,
    b"\r\n" * 1000,
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /%ff%00%zz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    b"GET /version HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n",
    b"GET /version HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n" + b"\x00" * 100,
    b"CONNECT example.org:443 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
]


async def rest(connection: Connection) -> bytes:
    """What the server says until it ends the connection."""
    async with asyncio.timeout(30):
        try:
            return await connection.reader.read(-1)
        except ConnectionResetError:
            return b""


async def send_without_end(connection: Connection, piece: bytes, pause: float = 0.0) -> None:
    """Until the server ends the connection."""
    async with asyncio.timeout(30):
        try:
            while True:
                await connection.send(piece)
                await asyncio.sleep(pause)
        except ConnectionError:
            return


def together(server: FaultyServer, exchange: Callable[[Connection], Any], count: int = 1) -> None:
    """`exchange` on so many connections at once, while another client is served."""

    async def one() -> None:
        async with connected(server.url) as connection:
            await exchange(connection)

    async def body() -> None:
        before = server.front_bytes
        hostile = [asyncio.create_task(one()) for _ in range(count)]
        assert (await ask(server.url, COMPLETIONS, SHORT)).status == 200
        await asyncio.gather(*hostile)
        assert server.front_bytes - before < 64 << 20

    asyncio.run(body())


def test_what_is_no_http(server: FaultyServer, counted: Callable[..., None]) -> None:
    async def exchange(connection: Connection, content: bytes) -> None:
        await connection.send(content)
        said = await rest(connection)
        assert re.match(rb"$|HTTP/1.1 [24]\d\d ", said), (content, said)

    for content in GARBAGE:
        together(server, lambda connection, content=content: exchange(connection, content))
    counted(connections_that_were_no_http=len(GARBAGE))


def test_header_floods(server: FaultyServer, counted: Callable[..., None]) -> None:
    async def endless(connection: Connection) -> None:
        await connection.send(b"GET /version HTTP/1.1\r\n")
        await send_without_end(connection, b"X-A: 1234567890\r\n" * 100)

    async def one_endless(connection: Connection) -> None:
        await connection.send(b"GET /version HTTP/1.1\r\nX-A: ")
        await send_without_end(connection, b"a" * 4096)

    async def endless_address(connection: Connection) -> None:
        await connection.send(b"GET /")
        await send_without_end(connection, b"a" * 4096)

    async def trailers(connection: Connection) -> None:
        """What may come after a body in pieces are headers too."""
        await connection.send(head(COMPLETIONS, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
        await connection.send(b"0\r\n")
        await send_without_end(connection, b"X-A: 1234567890\r\n" * 100)

    async def extensions(connection: Connection) -> None:
        await connection.send(head(COMPLETIONS, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
        await connection.send(b"1;")
        await send_without_end(connection, b"a" * 4096)

    kinds = (endless, one_endless, endless_address, trailers, extensions)
    for exchange in kinds:
        together(server, exchange, 4)
    counted(header_floods=4 * len(kinds))


def test_slow_and_half_open_connections(server: FaultyServer, counted: Callable[..., None]) -> None:
    async def silent(connection: Connection) -> None:
        assert await rest(connection) == b""

    async def slow_headers(connection: Connection) -> None:
        await connection.send(b"GET /version HTTP/1.1\r\n")
        await send_without_end(connection, b"X-A: 1\r\n", 0.1)

    async def half_a_header(connection: Connection) -> None:
        await connection.send(b"GET /version HTTP/1.1\r\nX-A")
        assert b" 408 " in (await rest(connection)).splitlines()[0]

    async def slow_body(connection: Connection) -> None:
        await connection.send(head(COMPLETIONS, 10_000) + b'{"prompt": "')
        await send_without_end(connection, b"a", 0.1)

    async def half_a_body(connection: Connection) -> None:
        await connection.send(head(COMPLETIONS, 10_000) + b'{"prompt": "')
        assert b" 408 " in (await rest(connection)).splitlines()[0]

    async def the_rest_of_a_refused_body(connection: Connection) -> None:
        await connection.send(head("/health", 1 << 40))
        await send_without_end(connection, b"a", 0.1)

    async def idle_after_an_answer(connection: Connection) -> None:
        await connection.send(message(COMPLETIONS, SHORT))
        assert (await read_answer(connection.reader)).status == 200
        assert await rest(connection) == b""

    async def half_a_second_request(connection: Connection) -> None:
        await connection.send(message(COMPLETIONS, SHORT))
        assert (await read_answer(connection.reader)).status == 200
        await connection.send(b"GET /vers")
        assert b" 408 " in (await rest(connection)).splitlines()[0]

    kinds = (
        silent,
        slow_headers,
        half_a_header,
        slow_body,
        half_a_body,
        the_rest_of_a_refused_body,
        idle_after_an_answer,
        half_a_second_request,
    )

    async def body() -> None:
        async def one(exchange: Callable[[Connection], Any]) -> None:
            async with connected(server.url) as connection:
                await exchange(connection)

        hostile = [asyncio.create_task(one(exchange)) for exchange in kinds for _ in range(4)]
        assert (await ask(server.url, COMPLETIONS, SHORT)).status == 200
        await asyncio.gather(*hostile)
        async with asyncio.timeout(10):
            while server.connections():
                await asyncio.sleep(0.02)

    asyncio.run(body())
    counted(slow_or_half_open_connections=4 * len(kinds))


def test_requests_sent_before_the_answer(server: FaultyServer) -> None:
    """Of many in one piece the first is answered; the connection's end says that the others must be sent again."""

    async def body() -> None:
        async with connected(server.url) as connection:
            await connection.send(message(COMPLETIONS, SHORT) * 5000)
            assert (await read_answer(connection.reader)).status == 200
            assert await rest(connection) == b""
        async with connected(server.url) as connection:  # one after the other they are all answered
            for _ in range(5):
                await connection.send(message(COMPLETIONS, SHORT))
                assert (await read_answer(connection.reader)).status == 200

    asyncio.run(body())


def test_a_flood_of_requests(server: FaultyServer, counted: Callable[..., None]) -> None:
    """Answered, or told when to come back."""

    async def body() -> None:
        answers = await asyncio.gather(*(ask(server.url, COMPLETIONS, SHORT | {"n": 4}) for _ in range(400)))
        statuses = [answer.status for answer in answers]
        assert set(statuses) <= {200, 429}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status == 429)
        counted(requests_of_a_flood_answered=statuses.count(200), refused_with_429=statuses.count(429))

    asyncio.run(body())


def test_a_flood_of_requests_that_nobody_waits_for(server: FaultyServer, counted: Callable[..., None]) -> None:
    async def one() -> None:
        with suppress(ConnectionError):  # a busy machine may not bring the headers in time
            async with connected(server.url) as connection:
                await connection.send(message(COMPLETIONS, SHORT | {"n": 8, "max_tokens": 300, "stream": True}))
                await connection.reader.readline()

    async def body() -> None:
        for _ in range(3):
            await asyncio.gather(*(one() for _ in range(50)))
        counted(requests_begun_and_left=150)

    asyncio.run(body())
