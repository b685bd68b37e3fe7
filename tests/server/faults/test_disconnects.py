"""Clients leave at every stage, in an orderly way or not: what they had is free again, and the books are right."""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from server.faults.faulty_server import FaultyServer
from server.faults.load import CHAT, COMPLETIONS
from server.faults.raw_http import Connection, ask, connected, head, message

DISCONNECTS = int(os.environ.get("LOOSELEAF_FAULT_DISCONNECTS", "68"))
AT_ONCE = 24
"""Three times the sequences that may run: the others are in the queue."""
LONG: dict[str, Any] = {"prompt": list(range(40)), "max_tokens": 450, "ignore_eos": True, "temperature": 0}
STREAM = LONG | {"stream": True}
Stage = Callable[[Connection, random.Random], Awaitable[None]]


async def before_the_headers_end(connection: Connection, rng: random.Random) -> None:
    whole = head(COMPLETIONS, 1000)
    await connection.send(whole[: rng.randrange(1, len(whole))])


async def within_the_body(connection: Connection, rng: random.Random) -> None:
    whole = message(COMPLETIONS, STREAM)
    await connection.send(whole[: -rng.randrange(1, 100)])


async def at_once(connection: Connection, _rng: random.Random) -> None:
    """Before its engine can know of it, or while it is in the queue."""
    await connection.send(message(COMPLETIONS, STREAM))


async def in_the_prefill(connection: Connection, rng: random.Random) -> None:
    prompt = [rng.randrange(256) for _ in range(500)]  # eight steps of 64
    await connection.send(message(COMPLETIONS, STREAM | {"prompt": prompt, "max_tokens": 10}))
    await asyncio.sleep(rng.uniform(0, 0.05))


async def within_the_stream(connection: Connection, rng: random.Random) -> None:
    await connection.send(message(COMPLETIONS, STREAM))
    for _ in range(rng.randrange(1, 100)):
        await connection.read_event()


async def within_many_samples(connection: Connection, rng: random.Random) -> None:
    await connection.send(message(COMPLETIONS, STREAM | {"n": 4, "temperature": 1, "prompt": [[1, 2], [3, 4]]}))
    for _ in range(rng.randrange(1, 100)):
        await connection.read_event()


async def within_beams(connection: Connection, rng: random.Random) -> None:
    await connection.send(message(COMPLETIONS, STREAM | {"beam_width": 4, "n": 2}))
    await asyncio.sleep(rng.uniform(0, 0.3))


async def within_the_best_of(connection: Connection, rng: random.Random) -> None:
    await connection.send(message(COMPLETIONS, STREAM | {"best_of": 4, "n": 2, "temperature": 1}))
    await asyncio.sleep(rng.uniform(0, 0.3))


async def before_the_whole_answer(connection: Connection, rng: random.Random) -> None:
    await connection.send(message(COMPLETIONS, LONG | {"n": 2}))
    await asyncio.sleep(rng.uniform(0, 0.3))


async def within_a_chat(connection: Connection, rng: random.Random) -> None:
    chat = {"messages": [{"role": "user", "content": "x" * rng.randrange(1, 200)}], "stream": True, "logprobs": True}
    await connection.send(message(CHAT, chat))
    for _ in range(rng.randrange(1, 30)):
        await connection.read_event()


async def within_structured_output(connection: Connection, rng: random.Random) -> None:
    await connection.send(message(COMPLETIONS, STREAM | {"structured_outputs": {"regex": "[a-z]{400}"}}))
    for _ in range(rng.randrange(1, 30)):
        await connection.read_event()


async def at_a_stop_string(connection: Connection, _rng: random.Random) -> None:
    """As some samples have ended, and others have not."""
    body = STREAM | {"n": 4, "temperature": 1, "stop": ["a", "b", "c", "d"]}
    await connection.send(message(COMPLETIONS, body))
    while '"stop"' not in (event := await connection.read_event()) and event:
        pass


async def after_the_end(connection: Connection, _rng: random.Random) -> None:
    await connection.send(message(COMPLETIONS, STREAM | {"max_tokens": 3}))
    while await connection.read_event() != "[DONE]":
        pass


async def after_asking_again(connection: Connection, rng: random.Random) -> None:
    """The second request comes while the first one is answered, then the client leaves."""
    await connection.send(message(COMPLETIONS, STREAM) + message(COMPLETIONS, STREAM))
    for _ in range(rng.randrange(0, 20)):
        await connection.read_event()


async def after_asking_again_for_whole_answers(connection: Connection, rng: random.Random) -> None:
    await connection.send(message(COMPLETIONS, LONG) + message(COMPLETIONS, LONG))
    await asyncio.sleep(rng.uniform(0, 0.1))


async def after_saying_no_more(connection: Connection, _rng: random.Random) -> None:
    await connection.send(message(COMPLETIONS, STREAM))
    connection.writer.write_eof()
    await connection.read_event()


async def after_a_refusal(connection: Connection, _rng: random.Random) -> None:
    await connection.send(message(COMPLETIONS, STREAM | {"max_tokens": 10_000}))
    await connection.reader.readline()


STAGES: list[Stage] = [
    before_the_headers_end,
    within_the_body,
    at_once,
    in_the_prefill,
    within_the_stream,
    within_many_samples,
    within_beams,
    within_the_best_of,
    before_the_whole_answer,
    within_a_chat,
    within_structured_output,
    at_a_stop_string,
    after_the_end,
    after_asking_again,
    after_asking_again_for_whole_answers,
    after_saying_no_more,
    after_a_refusal,
]


def test_clients_that_leave_leave_nothing_behind(server: FaultyServer, counted: Callable[..., None]) -> None:
    rng = random.Random(3)
    counts: Counter[str] = Counter()

    async def leave(number: int) -> None:
        stage = STAGES[number % len(STAGES)]
        async with gate, asyncio.timeout(60), connected(server.url) as connection:
            await stage(connection, random.Random(number))
            if rng.random() < 0.5:
                connection.reset()
        counts[f"disconnects {stage.__name__}"] += 1

    async def body() -> None:
        before = (await ask(server.url, COMPLETIONS, LONG)).body.partition(b'"choices"')[2]
        await asyncio.gather(*(leave(number) for number in range(DISCONNECTS)))
        after = (await ask(server.url, COMPLETIONS, LONG)).body.partition(b'"choices"')[2]
        assert _text(after) == _text(before)

    gate = asyncio.Semaphore(AT_ONCE)
    asyncio.run(body())
    counted(disconnects=sum(counts.values()), **counts)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("asks", [1, 2])
def test_what_nobody_reads_is_not_computed(whole: bool, asks: int, server: FaultyServer) -> None:
    """Also when the client had sent another request already, which keeps a server from seeing that it leaves."""

    async def body() -> None:
        before = await server.metric("looseleaf_computed_tokens_total", phase="decode")
        samples = LONG | {"n": 8, "prompt": [[1], [2], [3], [4]], "stream": not whole}
        async with connected(server.url) as connection:
            await connection.send(message(COMPLETIONS, samples) * asks)
            if whole:
                await asyncio.sleep(0.1)
            else:
                await connection.read_event()
        await server.settle()
        computed = await server.metric("looseleaf_computed_tokens_total", phase="decode") - before
        assert computed < 32 * LONG["max_tokens"] / 2

    asyncio.run(body())


def _text(answer: bytes) -> bytes:
    return answer.partition(b'"usage"')[0]
