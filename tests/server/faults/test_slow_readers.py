"""Who does not read holds up nobody else, costs no more memory than its output has, and is ended in time."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

from server.faults.faulty_server import FaultyServer
from server.faults.load import COMPLETIONS
from server.faults.raw_http import ask, message, put_together

READERS = int(os.environ.get("LOOSELEAF_FAULT_READERS", "3"))
BIG: dict[str, Any] = {"prompt": [1, 2], "n": 8, "max_tokens": 250, "ignore_eos": True, "logprobs": 20, "stream": True}
"""Some four megabytes of events: more than the sockets' buffers take."""
SMALL = {"prompt": [7, 8, 9], "max_tokens": 100, "ignore_eos": True, "temperature": 0, "stream": True}


def never_reading(server: FaultyServer) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = server.url.removeprefix("http://").split(":")
    connection.connect((host, int(port)))
    connection.sendall(message(COMPLETIONS, BIG))
    return connection


def test_who_never_reads_is_ended_and_others_go_on(server: FaultyServer, counted: Callable[..., None]) -> None:
    async def body() -> None:
        alone = put_together(await ask(server.url, COMPLETIONS, SMALL | {"stream": False}))[0][0].text
        before = server.front_bytes
        readers = [await asyncio.to_thread(never_reading, server) for _ in range(READERS)]
        try:
            most, answers = 0, 0
            async with asyncio.timeout(60):
                # The server has closed their connections when no more than the one that asks is left.
                while server.connections() or not answers:
                    answer = await ask(server.url, COMPLETIONS, SMALL | {"stream": False})
                    assert put_together(answer)[0][0].text == alone
                    most = max(most, server.front_bytes)
                    answers += 1
            assert most - before < READERS * (32 << 20)
            counted(readers_that_never_read=READERS, answers_beside_them=answers)
        finally:
            for each in readers:
                each.close()

    asyncio.run(body())


def test_who_reads_slowly_gets_everything(server: FaultyServer) -> None:
    async def body() -> None:
        body = BIG | {"logprobs": 20, "n": 4, "seed": 1}
        quick = put_together(await ask(server.url, COMPLETIONS, body | {"stream_options": {"include_usage": True}}))
        host, port = server.url.removeprefix("http://").split(":")
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, (host, int(port)))
        with connection:
            await loop.sock_sendall(connection, message(COMPLETIONS, body, "Connection: close"))
            text = b""
            while piece := await loop.sock_recv(connection, 1 << 15):
                text += piece
                await asyncio.sleep(0.005)
        assert text.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert text.count(b'"finish_reason":"length"') == len(quick[0]) == 4

    asyncio.run(body())
