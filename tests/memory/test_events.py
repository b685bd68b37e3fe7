from __future__ import annotations

import logging

import numpy as np
import pytest

from looseleaf.memory import (
    Allocate,
    BlockManager,
    Copy,
    EventStream,
    Free,
    MemoryEvent,
    OutOfBlocks,
    Share,
    UnknownSequence,
    make_manager,
)


def recorded(stream: EventStream) -> list[MemoryEvent]:
    events: list[MemoryEvent] = []
    stream.subscribe(events.append)
    return events


def test_one_event_for_each_operation_tells_who_got_what_when() -> None:
    stream = EventStream()
    events = recorded(stream)
    memory = BlockManager(8, 4, 4, events=stream)
    memory.step = 1
    first = memory.admit(7, request_id="a", filled=7)
    memory.step = 2
    second, _ = memory.fork(first, request_id="b")
    memory.step = 3
    memory.append(np.array([first, second]), 2)
    memory.release(first)
    memory.truncate(second, 4)

    allocate, share, copy, growth, free, tail = events
    assert [event.step for event in events] == [1, 2, 3, 3, 3, 3]
    assert isinstance(allocate, Allocate)
    assert allocate.blocks.tolist() == [0, 1]
    assert allocate.requests == ("a", "a")
    assert allocate.sequences.tolist() == [first, first]
    assert isinstance(share, Share)
    assert share.parent == first
    assert share.blocks.tolist() == [0, 1]
    assert share.requests == ("b", "b")
    assert isinstance(copy, Copy)
    assert (copy.sources.tolist(), copy.blocks.tolist(), copy.requests) == ([1], [2], ("a",))
    assert isinstance(growth, Allocate)
    assert (growth.blocks.tolist(), growth.requests) == ([3, 4], ("a", "b"))
    assert isinstance(free, Free)
    assert free.blocks.tolist() == [0, 2, 3]
    assert free.returned.tolist() == [False, True, True], "block 0 is still held by the fork"
    assert isinstance(tail, Free)
    assert tail.blocks.tolist() == [1, 4]


def test_nothing_is_built_while_nobody_listens(allocator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*_: object) -> None:
        raise AssertionError("an event was built")

    monkeypatch.setattr(MemoryEvent, "__init__", built)
    for event in (Allocate, Share, Copy, Free):
        monkeypatch.setattr(event, "__init__", built)
    stream = EventStream()
    memory = make_manager(allocator, 64, 4, 4, 8, events=stream)

    def run() -> None:
        seq = memory.admit(7, filled=7, final_tokens=12)
        child, _ = memory.fork(seq)
        memory.append(np.array([seq, child]), 2)
        memory.truncate(seq, 4)
        memory.release(seq)
        memory.release(child)

    run()
    stream.subscribe(lambda _: None)
    with pytest.raises(AssertionError):
        run()


def test_a_failing_listener_costs_neither_the_transaction_nor_the_others(
    allocator: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: MemoryEvent) -> None:
        raise RuntimeError("listener")

    stream = EventStream()
    stream.subscribe(fail)
    events = recorded(stream)
    memory = make_manager(allocator, 64, 4, 4, 8, events=stream)
    with caplog.at_level(logging.ERROR):
        seq = memory.admit(4)
    assert memory.lengths.tolist() == [4, 0, 0, 0]
    assert "unsubscribed" in caplog.text
    memory.release(seq)
    memory.audit()
    assert [type(event) for event in events] == [Allocate, Free]


def test_refused_operations_are_not_told(allocator: str) -> None:
    stream = EventStream()
    memory = make_manager(allocator, 2, 4, 4, 8, events=stream)
    seq = memory.admit(8)
    events = recorded(stream)
    with pytest.raises(UnknownSequence):
        memory.append(np.array([seq + 1]))
    with pytest.raises(OutOfBlocks):
        memory.append(np.array([seq]))
    with pytest.raises(OutOfBlocks):
        memory.admit(8)
    assert events == []


def test_unsubscribing_ends_the_stream() -> None:
    stream = EventStream()
    events: list[MemoryEvent] = []
    listener = events.append
    stream.subscribe(listener)
    stream.unsubscribe(listener)
    assert not stream
    BlockManager(2, 4, 4, events=stream).admit(8)
    assert events == []
    with pytest.raises(ValueError, match="not in list"):
        stream.unsubscribe(listener)
