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
