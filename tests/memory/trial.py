"""One manager and one naive model side by side, with a simulated KV cache between them.

Every operation, valid or not, is carried out on both: they must agree on the outcome, a refused operation must
leave the manager as it was byte for byte, and after each one every sequence must still read its own tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from naive_memory import NAIVE, NaiveSequence, row_of

from looseleaf.memory import (
    Copy,
    CopyPairs,
    EventStream,
    Free,
    MemoryEvent,
    MemoryLayerError,
    OutOfBlocks,
    Share,
    make_manager,
)

T = TypeVar("T")
BAD_SIZES = (0, -1, -(2**40), 2**40, 1.0, True, "1", None)
BAD_IDS = (-1, 0, 2**62, -(2**62), (1 << 24) - 1)


class Chooser(Protocol):
    """Source of all choices: Hypothesis, or a seeded generator."""

    def integer(self, low: int, high: int) -> int: ...


def pick(choose: Chooser, values: Any) -> Any:
    return values[choose.integer(0, len(values) - 1)]


def snapshot(value: Any) -> Any:
    """Everything a manager remembers, as comparable values."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, list | dict):
        return repr(value)
    if not hasattr(value, "__dict__"):
        return value
    return {name: snapshot(item) for name, item in vars(value).items() if name not in ("_scratch", "events")}


class EventMirror:
    """Rebuilds from the event stream alone which blocks each sequence holds, in order."""

    def __init__(self) -> None:
        self.tables: dict[int, list[int]] = {}

    def __call__(self, event: MemoryEvent) -> None:
        assert len(event.blocks) == len(event.sequences) == len(event.requests) > 0
        assert event.step == 7
        sources = event.sources.tolist() if isinstance(event, Copy) else [None] * len(event.blocks)
        given_up = Counter[int]()
        for block, seq, request, source in zip(
            event.blocks.tolist(), event.sequences.tolist(), event.requests, sources, strict=True
        ):
            table = self.tables.setdefault(seq, [])
            assert request.startswith("request")
            if isinstance(event, Free):
                given_up[seq] += 1
            elif source in table:
                table[table.index(source)] = block
            else:
                assert not isinstance(event, Share) or block in self.tables[event.parent]
                table.append(block)
        if isinstance(event, Free):
            for seq, count in given_up.items():
                assert self.tables[seq][-count:] == event.blocks.tolist()
                del self.tables[seq][-count:]
                if not self.tables[seq]:
                    del self.tables[seq]
            held = {block for table in self.tables.values() for block in table}
            assert event.returned.tolist() == [block not in held for block in event.blocks.tolist()]


@dataclass
class Geometry:
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_blocks_per_seq: int
    max_model_len: int

    @staticmethod
    def choose(choose: Chooser) -> Geometry:
        num_blocks, block_size = choose.integer(1, 24), choose.integer(1, 5)
        width = choose.integer(1, num_blocks + 2)
        return Geometry(num_blocks, block_size, choose.integer(1, 7), width, choose.integer(1, width * block_size))


class Trial:
    def __init__(self, allocator: str, geometry: Geometry) -> None:
        self.model = NAIVE[allocator](**vars(geometry))
        self.mirror = EventMirror()
        self.events = EventStream()
        self.memory = make_manager(
            allocator,
            geometry.num_blocks,
            geometry.block_size,
            geometry.max_num_seqs,
            geometry.max_blocks_per_seq,
            max_model_len=geometry.max_model_len,
            events=self.events,
        )
        self.events.subscribe(self.mirror)
        self.memory.step = 7
        self.cache = [-1] * (geometry.num_blocks * geometry.block_size)
        self.stale: list[int] = []
        self.failures: Counter[str] = Counter()
        self.requests = 0
        self.empty = self.memory.usage()

    def attempt(self, on_model: Callable[[], Any], on_memory: Callable[[], T]) -> T | None:
        """Both succeed, or both refuse with the same error; then everything is compared."""
        expected: MemoryLayerError | None = None
        actual: MemoryLayerError | None = None
        result: T | None = None
        before = None
        try:
            on_model()
        except MemoryLayerError as error:
            expected = error
            before = snapshot(self.memory)
        try:
            result = on_memory()
        except MemoryLayerError as error:
            actual = error
        assert type(actual) is type(expected), f"{actual!r} but expected {expected!r}"
        if actual is not None:
            assert snapshot(self.memory) == before, "a refused operation left a trace"
            self.failures[type(actual).__name__] += 1
        if isinstance(actual, OutOfBlocks) and isinstance(expected, OutOfBlocks):
            assert (actual.needed, actual.free) == (expected.needed, expected.free)
        return result

    def admit(self, num_tokens: Any, final_tokens: Any, filled: Any) -> None:
        added: list[NaiveSequence] = []
        self.requests += 1
        request = f"request {self.requests}"
        seq = self.attempt(
            lambda: added.append(self.model.admit(num_tokens, final_tokens, filled)),
            lambda: self.memory.admit(num_tokens, final_tokens=final_tokens, filled=filled, request_id=request),
        )
        if seq is not None:
            self.start(seq, added[0])
            self.write(seq, 0, filled)

    def can_admit(self, num_tokens: int, final_tokens: int | None, keep_free: int) -> None:
        try:
            blocks = self.model.admit(num_tokens, final_tokens, 0).blocks
            expected = not self.model.grows or len(blocks) + keep_free <= self.model.free
        except MemoryLayerError:
            expected = False
        assert self.memory.can_admit(num_tokens, final_tokens=final_tokens, keep_free=keep_free) == expected

    def fork(self, seq: Any, final_tokens: Any) -> None:
        added: list[NaiveSequence] = []
        self.requests += 1
        request = f"request {self.requests}"
        forked = self.attempt(
            lambda: added.append(self.model.fork(seq, final_tokens)),
            lambda: self.memory.fork(seq, request_id=request, final_tokens=final_tokens),
        )
        if forked is not None:
            self.start(forked[0], added[0])
            self.copy(forked[1])

    def append(self, seqs: list[Any], num_tokens: Any) -> None:
        ids = np.array(seqs, np.int64)
        copies = self.attempt(lambda: self.model.append(seqs, num_tokens), lambda: self.memory.append(ids, num_tokens))
        if copies is not None:
            self.copy(copies)

    def fill(self, seqs: list[Any], num_tokens: list[int]) -> None:
        before = [self.model.sequences[seq].filled if seq in self.model.sequences else 0 for seq in seqs]
        self.attempt(
            lambda: self.model.fill(seqs, num_tokens),
            lambda: self.memory.fill(np.array(seqs, np.int64), np.array(num_tokens, np.int32)),
        )
        for seq, start in zip(seqs, before, strict=True):
            if seq in self.model.sequences:
                self.write(seq, start, self.model.sequences[seq].filled)

    def truncate(self, seq: Any, num_tokens: Any) -> None:
        self.attempt(lambda: self.model.truncate(seq, num_tokens), lambda: self.memory.truncate(seq, num_tokens))

    def release(self, seq: Any) -> None:
        known = seq in self.model.sequences
        self.attempt(lambda: self.model.release(seq), lambda: self.memory.release(seq))
        if known:
            self.stale = [*self.stale[-20:], seq]

    def start(self, seq: int, added: NaiveSequence) -> None:
        assert seq not in self.model.sequences
        assert seq not in self.stale
        self.model.sequences[seq] = added

    def copy(self, copies: CopyPairs) -> None:
        """What the kernels do before a step."""
        size = self.model.block_size
        for source, destination in zip(copies.source.tolist(), copies.destination.tolist(), strict=True):
            self.cache[destination * size : (destination + 1) * size] = self.cache[source * size : (source + 1) * size]

    def write(self, seq: int, start: int, end: int) -> None:
        """What the kernels do in a step."""
        table, size = self.memory.table(seq).tolist(), self.model.block_size
        for position in range(start, end):
            self.cache[table[position // size] * size + position % size] = self.model.sequences[seq].tokens[position]

    def check(self) -> None:
        memory, model, size = self.memory, self.model, self.model.block_size
        memory.audit()
        assert memory.num_free_blocks == model.free
        assert memory.usage() == model.usage()
        model.check_tables(memory)
        tables, lengths = memory.block_tables, memory.lengths
        assert lengths.sum() == sum(len(seq.tokens) for seq in model.sequences.values())
        for name, seq in model.sequences.items():
            table = memory.table(name).tolist()
            assert self.mirror.tables[name] == model.held_blocks(memory, name)
            assert self.mirror.tables[name][: model.max_blocks_per_seq] == table
            assert tables[row_of(name), : len(table)].tolist() == table
            assert lengths[row_of(name)] == len(seq.tokens)
            read = [token for block in table for token in self.cache[block * size : (block + 1) * size]]
            assert read[: seq.filled] == seq.tokens[: seq.filled], "a sequence reads what it did not write"
        assert len(self.mirror.tables) == len(model.sequences)
        assert self.events, "the mirror refused an event and was unsubscribed"

    def drain(self) -> None:
        """Release everything: the pool must be whole again."""
        for seq in list(self.model.sequences):
            self.release(seq)
            self.check()
        assert self.memory.usage() == self.empty
        assert self.memory.num_free_blocks == self.model.num_blocks


def some_id(trial: Trial, choose: Chooser) -> Any:
    """Mostly a live sequence, sometimes a released one or one that never was."""
    live = list(trial.model.sequences)
    if live and choose.integer(0, 11):
        return pick(choose, live)
    return pick(choose, [*BAD_IDS, *trial.stale])


def some_size(choose: Chooser, high: int) -> Any:
    return choose.integer(1, high) if choose.integer(0, 15) else pick(choose, BAD_SIZES)


def admit(trial: Trial, choose: Chooser) -> None:
    longest = trial.model.max_tokens
    tokens = some_size(choose, longest + 1 if not choose.integer(0, 7) else max(1, longest // 3))
    low = tokens if isinstance(tokens, int) else 1
    final = None if choose.integer(0, 1) else choose.integer(low - (not choose.integer(0, 7)), low + longest // 2)
    filled = choose.integer(0, 1) * tokens if type(tokens) is int else 0
    if not choose.integer(0, 11):
        filled = pick(choose, [-1, 1, 2, 10**9, 0.5])
    if type(tokens) is int and 1 <= tokens < 2**31 and (final is None or tokens <= final < 2**31):
        trial.can_admit(tokens, final, choose.integer(0, 4))
    trial.admit(tokens, final, filled)


def append(trial: Trial, choose: Chooser) -> None:
    seqs = [seq for seq in trial.model.sequences if choose.integer(0, 3)]
    if not choose.integer(0, 9):
        seqs.insert(choose.integer(0, len(seqs)), some_id(trial, choose))
    if choose.integer(0, 1):
        seqs.reverse()
    num_tokens = 1 if choose.integer(0, 2) else some_size(choose, 2 * trial.model.block_size + 1)
    trial.append(seqs, num_tokens)


def fill(trial: Trial, choose: Chooser) -> None:
    seqs = [seq for seq in trial.model.sequences if choose.integer(0, 3)]
    if not choose.integer(0, 9):
        seqs.insert(choose.integer(0, len(seqs)), some_id(trial, choose))
    missing = [len(seq.tokens) - seq.filled for name in seqs if (seq := trial.model.sequences.get(name))]
    counts = [missing.pop(0) if seq in trial.model.sequences else 1 for seq in seqs]
    if seqs and not choose.integer(0, 3):
        counts[choose.integer(0, len(seqs) - 1)] += choose.integer(-2, 1)
    trial.fill(seqs, counts)


def fork(trial: Trial, choose: Chooser) -> None:
    seq = some_id(trial, choose)
    final = None
    if choose.integer(0, 1) and seq in trial.model.sequences:
        final = choose.integer(-1, 6) + len(trial.model.sequences[seq].tokens)
    trial.fork(seq, final)


def truncate(trial: Trial, choose: Chooser) -> None:
    seq = some_id(trial, choose)
    known = trial.model.sequences.get(seq)
    trial.truncate(seq, some_size(choose, len(known.tokens) + (not choose.integer(0, 7)) if known else 3))


def release(trial: Trial, choose: Chooser) -> None:
    trial.release(some_id(trial, choose))


OPERATIONS = (admit, append, append, append, fill, fill, fork, fork, truncate, release)
"""As often as they are named."""
