"""The engine's process is killed at random moments: streams pause, and end as if nothing had been."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from server.faults.faulty_server import FaultyServer
from server.faults.load import COMPLETIONS, requests
from server.faults.raw_http import ask, connected, message, put_together, read_answer
from server.server_process import COMMAND, OPTIONS

KILLS = int(os.environ.get("LOOSELEAF_FAULT_KILLS", "2"))
CLIENTS = 12
LONG: dict[str, Any] = {"prompt": [[each] for each in range(6)], "max_tokens": 400, "ignore_eos": True, "stream": True}
LONG |= {"temperature": 0, "stream_options": {"include_usage": True}}


async def kill(server: FaultyServer) -> None:
    """Kill the engine's process, and wait until there is another one."""
    engine = server.engine()
    assert engine is not None
    engine.send_signal(signal.SIGKILL)
    while (other := server.engine()) is None or other.pid == engine.pid:
        await asyncio.sleep(0.005)


def test_streams_go_on_when_the_engine_is_killed_under_load(server: FaultyServer, counted: Callable[..., None]) -> None:
    rng = random.Random(1)
    load = requests(rng, 24)

    async def body() -> None:
        expected = [put_together(await ask(server.url, *each)) for each in load]
        restarts = await server.metric("looseleaf_engine_restarts_total")
        killing = asyncio.create_task(kills())
        answers = sum(await asyncio.gather(*(client(first, killing, expected) for first in range(CLIENTS))))
        await killing
        assert await server.metric("looseleaf_engine_restarts_total") - restarts == KILLS
        counted(kills_under_load=KILLS, answers_across_kills_equal_to_undisturbed_ones=answers)

    async def kills() -> None:
        for number in range(KILLS):
            if number % 4:  # else it may not even have begun
                before = await server.metric("vllm:generation_tokens_total")
                while await server.metric("vllm:generation_tokens_total") == before:
                    await asyncio.sleep(0.02)
            await asyncio.sleep(rng.uniform(0, 0.4))
            await kill(server)
            await server.wait_until_ready()

    async def client(number: int, killing: asyncio.Task[None], expected: list[Any]) -> int:
        """One request after another, until the last kill."""
        answers = 0
        while not killing.done() or not answers:
            which = number % len(load)
            number += 5
            assert put_together(await ask(server.url, *load[which])) == expected[which], load[which]
            answers += 1
        return answers

    asyncio.run(body())


def test_the_next_engine_is_killed_while_it_starts(server: FaultyServer, counted: Callable[..., None]) -> None:
    async def body() -> None:
        expected = put_together(await ask(server.url, COMPLETIONS, LONG))
        async with connected(server.url) as connection:
            await connection.send(message(COMPLETIONS, LONG))
            await kill(server)
            await asyncio.sleep(0.1)
            await kill(server)
            assert (await ask(server.url, "/health/ready", method="GET")).status == 503
            assert put_together(await read_answer(connection.reader)) == expected
        counted(kills_of_a_starting_engine=1, kills_under_load=1)

    asyncio.run(body())


def test_the_engine_is_killed_while_the_server_stops(folder: Path, counted: Callable[..., None]) -> None:
    server = FaultyServer(folder)

    async def body() -> None:
        expected = put_together(await ask(server.url, COMPLETIONS, LONG))
        async with connected(server.url) as connection:
            await connection.send(message(COMPLETIONS, LONG))
            first = await connection.reader.readuntil(b"data: ")
            server.tell(signal.SIGTERM)
            await asyncio.to_thread(server.wait_for_line, "Stopping")
            await kill(server)
            rest = asyncio.StreamReader(limit=1 << 24)
            rest.feed_data(first + await connection.reader.read(-1))
            rest.feed_eof()
            assert put_together(await read_answer(rest)) == expected
        assert await asyncio.to_thread(server.process.wait, 60) == 0

    try:
        asyncio.run(body())
        counted(kills_while_the_server_stops=1)
    finally:
        server.end()


def test_an_engine_that_ends_at_once_every_time_is_given_up(folder: Path, counted: Callable[..., None]) -> None:
    server = FaultyServer(folder)
    killed: set[int] = set()
    seen: set[str] = set()

    async def kill_whatever_starts() -> None:
        while server.process.poll() is None:
            try:
                engine = server.engine()
            except psutil.NoSuchProcess:
                return
            if engine is not None and engine.pid not in killed:
                killed.add(engine.pid)
                engine.send_signal(signal.SIGKILL)
            await asyncio.sleep(0.01)

    async def watch() -> None:
        try:
            while True:
                seen.add((await ask(server.url, "/health", method="GET")).body.decode())
                await asyncio.sleep(0.02)
        except (OSError, EOFError):
            return  # the server is gone

    async def body() -> None:
        waiting = asyncio.create_task(ask(server.url, COMPLETIONS, LONG | {"stream": False, "stream_options": None}))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(60):
            await asyncio.gather(kill_whatever_starts(), watch())
        answer = await waiting
        assert (answer.status, answer.code) == (503, "engine_stopped")
        assert await asyncio.to_thread(server.process.wait, 60) == 2

    try:
        asyncio.run(body())
    finally:
        server.end()
    assert 3 <= len(killed) <= 5
    assert '{"status":"restarting"}' in seen
    said = "".join(server.lines)
    assert "SIGKILL" in said
    assert "The engine is lost" in said
    assert "Traceback" not in said
    counted(engines_given_up=1, kills_of_a_starting_engine=len(killed) - 1)


def test_engines_that_are_killed_before_the_first_is_ready(folder: Path) -> None:
    with subprocess.Popen([*COMMAND, str(folder), *OPTIONS], stderr=subprocess.PIPE, text=True) as process:
        front = psutil.Process(process.pid)
        while process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                for engine in front.children():
                    engine.kill()
            time.sleep(0.01)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 2
    assert "ended before it was ready: signal SIGKILL" in said
    assert "Traceback" not in said
