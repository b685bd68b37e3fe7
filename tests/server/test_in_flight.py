"""What the front keeps of a request: everything arrives once and in order, and is enough to go on from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.server.in_flight import InFlight
from looseleaf.server.interface import (
    EngineStopped,
    Event,
    GenerateRequest,
    RequestEnd,
    RequestStarted,
    SampleUpdate,
    TokenLogprob,
)


def flight(**params: Any) -> InFlight:
    return InFlight(GenerateRequest(request_id="it#1", prompt_token_ids=[1], params=params), "it")


def update(index: int, *tokens: int, finish: Any = None) -> SampleUpdate:
    logprobs = [[TokenLogprob(token, -1.0, 1)] for token in tokens]
    return SampleUpdate("it#1", index, list(tokens), finish, None, logprobs)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.booleans()), max_size=30))
def test_a_reader_gets_every_token_once_however_seldom_it_looks(steps: list[tuple[int, int, bool]]) -> None:
    it = flight(n=3)
    it.tell(RequestStarted("it#1", 4))
    expected: dict[int, list[int]] = {0: [], 1: [], 2: []}
    seen: list[Event] = []
    for number, (index, count, reads) in enumerate(steps):
        tokens = list(range(10 * number, 10 * number + count))
        expected[index] += tokens
        it.tell(update(index, *tokens))
        if reads:
            seen += it.take()
    assert it.command().known == ([] if not steps else [expected[index] for index in range(3)])
    it.finish()
    it.tell(update(0, 99))  # nothing comes after the end
    seen += it.take()
    assert isinstance(seen[0], RequestStarted)
    assert isinstance(seen[-1], RequestEnd)
    assert all(event.request_id == "it" for event in seen)
    for index in range(3):
        updates = [event for event in seen if isinstance(event, SampleUpdate) and event.index == index]
        assert [token for event in updates for token in event.token_ids] == expected[index]
        assert [entries[0].token_id for event in updates for entries in event.logprobs or ()] == expected[index]


def test_what_is_read_while_more_comes_is_complete() -> None:
    it = flight()
    it.tell(update(0, 1))
    taken = it.take()
    first = next(taken)
    it.tell(update(0, 2))
    it.finish()
    assert isinstance(first, SampleUpdate)
    assert first.token_ids == [1]
    rest = list(taken)
    assert isinstance(rest[0], SampleUpdate)
    assert rest[0].token_ids == [2]
    assert isinstance(rest[1], RequestEnd)


def test_a_restart_begins_where_it_was_or_anew() -> None:
    it = flight(n=2, prompt_logprobs=1)
    seed = it.command().params["seed"]
    assert it.command().known == []
    it.tell(update(0, 5, 6))
    it.tell(update(1, 7, finish="stop"))
    command = it.command()
    assert (command.known, command.ended) == ([[5, 6], [7]], [1])
    assert command.params == {"n": 2, "seed": seed}
    assert not it.exhausted
    assert it.end_sample(0)
    assert not it.end_sample(0)
    assert not it.end_sample(2)
    assert it.exhausted
    it.tell(update(0, 8))
    assert it.command().known == [[5, 6], [7]]

    for whole in (flight(beam_width=2), flight(best_of=2)):
        whole.tell(update(0, 1, finish="stop"))
        assert whole.command() == whole.request
        assert not whole.exhausted
        assert not whole.end_sample(0)
    assert flight(seed=0).command().params["seed"] == 0


def test_an_error_comes_after_what_was_there() -> None:
    it = flight()
    it.tell(update(0, 1))
    it.fail(EngineStopped("It stops."))
    it.fail(ValueError("too late"))
    taken = it.take()
    assert isinstance(next(taken), SampleUpdate)
    with pytest.raises(EngineStopped):
        next(taken)


def test_waiting_ends_when_something_comes() -> None:
    async def main() -> None:
        it = flight()
        waiting = asyncio.create_task(it.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        it.tell(update(0, 1))
        await waiting
        await it.wait()  # it has not been taken yet
        assert list(it.take())
        cancelled = asyncio.create_task(it.wait())
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        it.finish()
        await it.wait()

    asyncio.run(main())


def listening(taken: list[int], ready: list[bool]) -> InFlight:
    def listen(event: SampleUpdate) -> bool:
        if event.token_ids == [13]:
            raise RuntimeError("13")
        if event.finish_reason is not None or not ready[0]:
            return False
        taken.extend(event.token_ids)
        return True

    return InFlight(GenerateRequest(request_id="it#1", prompt_token_ids=[1]), "it", listen)


@given(st.lists(st.sampled_from(["tell", "read", "busy", "ready"]), max_size=40))
def test_listener_and_reader_get_every_token_once_and_in_order(steps: list[str]) -> None:
    """The listener never gets a token before those that the reader has not had."""

    async def run() -> None:
        seen: list[int] = []
        ready = [True]
        it = listening(seen, ready)

        async def read() -> None:
            while not it.over:
                for event in it.take():
                    if isinstance(event, SampleUpdate):
                        seen.extend(event.token_ids)
                await it.wait()

        reader = asyncio.create_task(read())
        count = 0
        for step in steps:
            if step == "tell":
                it.tell(update(0, 100 + count))
                count += 1
            elif step == "read":
                await asyncio.sleep(0)
            else:
                ready[0] = step == "ready"
        it.tell(update(0, 100 + count, finish="length"))
        it.finish()
        await reader
        for event in it.take():
            if isinstance(event, SampleUpdate):
                seen.extend(event.token_ids)
        assert seen == list(range(100, 101 + count))

    asyncio.run(run())


def test_what_a_listener_takes_is_known_after_a_restart_and_wakes_nobody() -> None:
    async def run() -> None:
        taken: list[int] = []
        it = listening(taken, [True])
        reader = asyncio.create_task(it.wait())
        await asyncio.sleep(0)
        it.tell(update(0, 5))
        it.tell(update(0, 6, 7))
        await asyncio.sleep(0)
        assert taken == [5, 6, 7]
        assert not reader.done()
        assert it.command().known == [[5, 6, 7]]
        it.finish()
        await reader

    asyncio.run(run())


def test_what_a_listener_raises_is_for_the_reader() -> None:
    async def run() -> None:
        it = listening([], [True])
        reader = asyncio.create_task(it.wait())
        await asyncio.sleep(0)
        it.tell(update(0, 13))
        await reader
        with pytest.raises(RuntimeError, match="13"):
            list(it.take())
        assert not it.over  # whoever reads gives it up, and the engine is told

    asyncio.run(run())
