"""Connections are used again while that is safe, and what breaks off is an error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest

from looseleaf.errors import InvalidRequest
from looseleaf.load.driver import Asking, LoadRun, closed_loop, open_loop
from looseleaf.load.http_client import HttpClient
from looseleaf.load.work import LoadRequest

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
GOOD = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
WORK = [LoadRequest(np.arange(3), 1) for _ in range(6)]


def whole(body: bytes, *headers: str) -> bytes:
    head = "\r\n".join(["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers])
    return head.encode() + b"\r\n\r\n" + body


def chunked(*pieces: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[tuple[HttpClient, list[int]]]:
    """A client of a server that answers each request so, and the requests that each connection had."""
    counts: list[int] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(counts)
        counts.append(0)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.split(b"\r\n") if line.startswith(b"Content-Length")]
                await reader.readexactly(int(length[0].split()[1]) if length else 0)
                counts[number] += 1
                await answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    yield client, counts
    client.close()
    server.close()


def says(data: bytes, *, close: bool = False) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        if close:
            writer.close()

    return answer


def run(answer: Answer, *, concurrency: int = 2, timeout: float = 10.0) -> tuple[LoadRun, list[int]]:
    async def drive() -> tuple[LoadRun, list[int]]:
        async with serving(answer) as (client, counts):
            return await closed_loop(client, Asking("m", timeout=timeout), WORK, concurrency), counts

    return asyncio.run(drive())


@pytest.mark.parametrize("data", [whole(GOOD), chunked(GOOD[:20], GOOD[20:])])
def test_a_connection_is_used_again(data: bytes) -> None:
    found, counts = run(says(data))
    assert [answer.failure for answer in found.answers] == [None] * 6
    assert (len(counts), sum(counts)) == (2, 6)


def test_unless_the_server_says_close() -> None:
    found, counts = run(says(whole(GOOD, "Connection: close"), close=True))
    assert [answer.failure for answer in found.answers] == [None] * 6
    assert counts == [1] * 6


@pytest.mark.parametrize("data", [b"", whole(GOOD)[:-5], chunked(GOOD)[:-5], b"SSH-2.0-OpenSSH\r\n"])
def test_what_breaks_off(data: bytes) -> None:
    found, _ = run(says(data, close=True))
    assert [answer.failure for answer in found.answers] == ["connection closed"] * 6


def test_what_takes_too_long() -> None:
    async def silence(_writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)

    found, counts = run(silence, concurrency=6, timeout=0.05)
    assert [answer.failure for answer in found.answers] == ["timeout"] * 6
    assert counts == [1] * 6


def test_nobody_there() -> None:
    found = asyncio.run(open_loop(HttpClient("127.0.0.1:1"), Asking("m"), WORK, [0.0] * 6))
    assert [answer.failure for answer in found.answers] == ["connection refused"] * 6


def test_who_waits_for_a_place_has_its_time_running() -> None:
    """Requests are due at once, and one place serves them in turn: a slow server cannot hide behind its client."""

    async def slowly(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(whole(GOOD))

    async def drive() -> LoadRun:
        async with serving(slowly) as (client, _):
            return await open_loop(client, Asking("m"), WORK, [0.0] * 6, concurrency=1)

    answers = asyncio.run(drive()).answers
    waited = sorted(answer.ended - answer.scheduled for answer in answers)
    assert all(seconds >= 0.05 * place for place, seconds in enumerate(waited, 1))
    assert all(answer.sent - answer.scheduled >= 0 for answer in answers)


def test_nothing_is_sent_before_it_is_due() -> None:
    async def drive() -> tuple[LoadRun, float]:
        async with serving(says(whole(GOOD))) as (client, _):
            began = time.perf_counter()
            return await open_loop(client, Asking("m"), WORK[:3], [0.0, 0.03, 0.06]), began

    found, began = asyncio.run(drive())
    assert all(answer.sent >= answer.scheduled for answer in found.answers)
    assert [answer.scheduled - found.started for answer in found.answers] == pytest.approx([0.0, 0.03, 0.06])
    assert found.started >= began


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://box/v1", "http://box"),
        ("http://box:80/base/v1/", "http://box:80/base"),
        ("https://[::1]:8443", "https://[::1]:8443"),
    ],
)
def test_addresses(url: str, shown: str) -> None:
    assert HttpClient(url).url == shown


@pytest.mark.parametrize("url", ["", "ftp://box", "http://", "http://box:port", "http://box:99999"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(InvalidRequest, match="no address"):
        HttpClient(url)
