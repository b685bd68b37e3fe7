"""The queue's length, as counted by the front, on an engine that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, cast

import pytest

from looseleaf.server.admitted_engine import AdmittedEngine
from looseleaf.server.identity import Tenant
from looseleaf.server.interface import (
    EngineClient,
    EngineStats,
    Event,
    GenerateRequest,
    Listener,
    ModelInfo,
    RequestEnd,
    RequestStarted,
    SampleUpdate,
)
from looseleaf.server.protocol.errors import ApiError
from looseleaf.server.quotas import Quotas

INFO = ModelInfo(
    vocab_size=9,
    eos_token_ids=[],
    max_model_len=99,
    largest_request=99,
    block_size=4,
    num_blocks=9,
    max_num_seqs=2,
)


class Scripted:
    """Starts a request when `start` says so, and ends it when `end` does."""

    state = "ready"
    info = INFO
    num_restarts = 0
    num_waiting = 0

    def __init__(self) -> None:
        self.start = asyncio.Event()
        self.end = asyncio.Event()

    def stats(self) -> EngineStats:
        return EngineStats(num_waiting=self.num_waiting)

    async def generate(
        self, request: GenerateRequest, _listener: Listener | None = None
    ) -> AsyncGenerator[Event, None]:
        await self.start.wait()
        yield RequestStarted(request.request_id, 0)
        yield SampleUpdate(request.request_id, 0, [1, 2])
        await self.end.wait()
        yield RequestEnd(request.request_id)


def admitted(engine: Scripted, quotas: Quotas, max_queue: int, **limits: Any) -> AdmittedEngine:
    return AdmittedEngine(
        cast(EngineClient, engine),
        max_queue=max_queue,
        quotas=quotas,
        tenant_named=lambda name: Tenant(name=name, **limits),
    )


async def consume(engine: AdmittedEngine, number: int, **fields: Any) -> None:
    async for _ in engine.generate(GenerateRequest(request_id=str(number), prompt_token_ids=[1], **fields)):
        pass


@pytest.mark.parametrize("max_queue", [0, 1, 3])
def test_as_many_wait_as_may(max_queue: int) -> None:
    async def main() -> None:
        engine, quotas = Scripted(), Quotas()
        door = admitted(engine, quotas, max_queue)
        tasks = [asyncio.create_task(consume(door, number)) for number in range(2 + max_queue)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught:
            await consume(door, 99)
        assert caught.value.status == 429
        assert int(caught.value.headers["Retry-After"]) >= 1
        tasks.pop().cancel()  # whoever leaves makes room
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(consume(door, 100)))
        engine.start.set()
        engine.end.set()
        await asyncio.gather(*tasks)
        assert quotas.usage("").balance == -3 * len(tasks)
        assert door.queued() == 0

    asyncio.run(main())


def test_what_the_engine_says_of_its_queue_counts() -> None:
    async def main() -> None:
        engine = Scripted()
        engine.num_waiting = 5
        door = admitted(engine, Quotas(), 1)
        first = asyncio.create_task(consume(door, 1))
        await asyncio.sleep(0)
        with pytest.raises(ApiError):  # there is a seat, but no memory
            await consume(door, 2)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first

    asyncio.run(main())


def test_a_priority_that_the_tenant_may_not_ask_for() -> None:
    async def main() -> None:
        engine = Scripted()
        engine.start.set()
        engine.end.set()
        door = admitted(engine, Quotas(), 1, lowest_priority_value=2)
        await consume(door, 1, priority=2)
        with pytest.raises(ApiError, match="priority is 1"):
            await consume(door, 2, priority=1)

    asyncio.run(main())


def test_a_server_that_stops_is_not_ready() -> None:
    door = admitted(Scripted(), Quotas(), 1)
    assert door.state == "ready"
    door.closing = True
    assert door.state == "stopped"
