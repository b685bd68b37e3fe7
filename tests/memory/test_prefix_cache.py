"""The prefix cache against a simulated KV cache: whatever is given out holds exactly the right keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.memory import BlockManager, EventStream, OutOfBlocks
from looseleaf.memory.errors import InvalidSize, PinTooLarge, UnknownPin
from looseleaf.memory.events import Evict, MemoryEvent, Register
from looseleaf.memory.prefix import Prefix

State = tuple[str, tuple[int, ...]]
"""What a slot holds: keys and values depend on the scope and on all tokens up to this one."""


def ids(tokens: list[int] | range) -> np.ndarray:
    return np.array(list(tokens), np.int32)


class World:
    """A manager, and what each slot of its pool holds."""

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int = 6) -> None:
        self.events = EventStream()
        self.memory = BlockManager(num_blocks, block_size, max_num_seqs, 64, max_pinned_share=0.5, events=self.events)
        self.slots: dict[int, State] = {}
        self.live: dict[int, tuple[str, list[int]]] = {}
        self.computed: list[tuple[str, list[int]]] = []
        """All that was ever registered, per sequence."""

    def slot(self, seq: int, token: int) -> int:
        table = self.memory.table(seq)
        size = self.memory.block_size
        return int(table[token // size]) * size + token % size

    def carry_out(self, copies: Any) -> None:
        size = self.memory.block_size
        for source, destination in zip(copies.source.tolist(), copies.destination.tolist(), strict=True):
            for offset in range(size):
                self.slots[destination * size + offset] = self.slots.get(source * size + offset, ("", ()))

    def compute(self, seq: int, start: int, end: int) -> None:
        scope, tokens = self.live[seq]
        for token in range(start, end):
            self.slots[self.slot(seq, token)] = (scope, tuple(tokens[: token + 1]))

    def check(self, seq: int) -> None:
        """Every computed token of the sequence is where it should be."""
        scope, tokens = self.live[seq]
        filled = int(self.memory._tables.filled[self.memory._tables.row(seq)])
        for token in range(filled):
            assert self.slots[self.slot(seq, token)] == (scope, tuple(tokens[: token + 1]))

    def admit(self, tokens: list[int], scope: str = "") -> tuple[int, int]:
        """Admit, copy, compute, register, in one step of its own; returns sequence and tokens from the cache."""
        self.memory.step += 1
        admission = self.memory.admit_prefix(Prefix(ids(tokens), scope), request_id="r")
        self.carry_out(admission.copies)
        seq = admission.seq
        self.live[seq] = (scope, list(tokens))
        self.check(seq)
        assert admission.num_cached < len(tokens), "the last token is always computed"
        self.memory.register(seq, ids(tokens), len(tokens))
        self.compute(seq, admission.num_cached, len(tokens))
        self.memory.fill(np.array([seq]), len(tokens) - admission.num_cached)
        self.computed.append(self.live[seq])
        return seq, admission.num_cached

    def grow(self, seq: int, token: int) -> None:
        self.memory.step += 1
        self.carry_out(self.memory.append(np.array([seq])))
        _, tokens = self.live[seq]
        tokens.append(token)
        self.compute(seq, len(tokens) - 1, len(tokens))
        self.memory.fill(np.array([seq]), 1)
        self.memory.register(seq, ids(tokens), len(tokens))

    def release(self, seq: int, *, ended: bool) -> None:
        _, tokens = self.live.pop(seq)
        if ended:
            self.memory.register(seq, ids(tokens), len(tokens), ended=True)
        self.memory.release(seq)

    def check_all(self) -> None:
        assert self.memory.cache_counts().pinned_blocks <= self.memory.num_blocks // 2
        self.memory.audit()
        for seq in self.live:
            self.check(seq)


def common(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


tokens_lists = st.lists(st.integers(0, 1), min_size=1, max_size=14)
scopes = st.sampled_from(["", "other salt"])


@settings(max_examples=150, deadline=None)
@given(st.data(), st.integers(1, 4))
def test_without_eviction_a_prompt_gets_the_longest_beginning_that_any_sequence_had(
    data: st.DataObject, block_size: int
) -> None:
    world = World(200, block_size, 40)
    for _ in range(data.draw(st.integers(1, 8))):
        tokens, scope = data.draw(tokens_lists), data.draw(scopes)
        best = max((common(tokens, known) for where, known in world.computed if where == scope), default=0)
        seq, cached = world.admit(tokens, scope)
        assert cached == min(best, len(tokens) - 1)
        for token in data.draw(st.lists(st.integers(0, 1), max_size=5)):
            world.grow(seq, token)
        world.release(seq, ended=True)
        world.check_all()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_under_pressure_nobody_ever_reads_anothers_states(data: st.DataObject) -> None:
    world = World(data.draw(st.integers(3, 12)), data.draw(st.integers(1, 4)))
    pins: list[int] = []
    if data.draw(st.booleans()):
        world.memory._prefixes.index._multipliers = np.zeros(4096, np.uint64)  # every hash collides
    for _ in range(data.draw(st.integers(1, 40))):
        choices = ["admit", "reset"] if not world.live else ["admit", "admit", "grow", "grow", "fork", "release", "cut"]
        action = data.draw(st.sampled_from([*choices, "pin", "unpin"]))
        seq = data.draw(st.sampled_from(sorted(world.live))) if world.live else -1
        if action == "admit" and len(world.live) < 5:
            tokens, scope = data.draw(tokens_lists), data.draw(scopes)
            prefix = Prefix(ids(tokens), scope)
            before = world.memory.usage()
            fits = world.memory.can_admit(len(tokens), prefix=prefix)
            try:
                world.admit(tokens, scope)
            except OutOfBlocks:
                assert not fits
                assert world.memory.usage() == before
            else:
                assert fits
        elif action == "grow":
            try:
                world.grow(seq, data.draw(st.integers(0, 1)))
            except OutOfBlocks:
                assert world.memory.num_free_blocks == 0
        elif action == "fork" and len(world.live) < 5:
            child, _ = world.memory.fork(seq)
            scope, tokens = world.live[seq]
            world.live[child] = (scope, list(tokens))
        elif action == "release":
            world.release(seq, ended=data.draw(st.booleans()))
        elif action == "cut":
            scope, tokens = world.live[seq]
            kept = data.draw(st.integers(1, len(tokens)))
            world.memory.truncate(seq, kept)
            del tokens[kept:]
        elif action == "reset":
            world.memory.reset_prefix_cache()
            pins.clear()
            assert world.memory.usage().cached == 0
        elif action == "pin":
            with suppress(PinTooLarge):  # whether rightly so, `check_all` sees
                pin, _ = world.memory.pin(Prefix(ids(data.draw(tokens_lists)), data.draw(scopes)))
                pins.append(pin)
        elif action == "unpin" and pins:
            world.memory.unpin(pins.pop(data.draw(st.integers(0, len(pins) - 1))))
        world.check_all()
    for seq in list(world.live):
        world.release(seq, ended=True)
    assert world.memory.num_free_blocks == world.memory.num_blocks, "everything can be had, cached or not"
    world.check_all()


def test_a_joke_asked_a_hundred_times() -> None:
    """33 tokens, the last always computed: 32 of 33 tokens of 99 prompts at block 16, nothing at block 128."""
    for size, expected in ((16, 99 * 32 / 3300), (128, 0.0)):
        memory = BlockManager(500, size, 4)
        for _ in range(100):
            memory.step += 1
            admission = memory.admit_prefix(Prefix(ids(range(33))))
            memory.register(admission.seq, ids(range(33)), 33)
            memory.fill(np.array([admission.seq]), 33 - admission.num_cached)
            memory.release(admission.seq)
        counts = memory.cache_counts()
        assert counts.query_tokens == 3300
        assert counts.hit_tokens / counts.query_tokens == pytest.approx(expected)


@pytest.mark.parametrize("length", [32, 33, 40, 47, 48])
def test_a_prompt_that_is_cached_as_a_whole_computes_one_token(length: int) -> None:
    world = World(20, 16)
    first, _ = world.admit(list(range(length)))
    world.release(first, ended=True)
    _, cached = world.admit(list(range(length)))
    assert cached == length - 1


def test_requests_of_one_step_share_what_the_first_of_them_computes() -> None:
    memory = BlockManager(20, 4, 4)
    memory.step = 1
    first = memory.admit_prefix(Prefix(ids(range(10))))
    memory.register(first.seq, ids(range(10)), 10)
    second = memory.admit_prefix(Prefix(ids([*range(9), 77, 78])))
    assert second.num_cached == 8, "its full blocks; the third is not there yet to be copied from"
    assert second.copies.source.size == 0
    assert memory.table(first.seq)[:2].tolist() == memory.table(second.seq)[:2].tolist()
    memory.audit()
    usage = memory.usage()
    assert (usage.token_states, usage.reserved) == (0, 13), "shared or not, nothing is computed yet"
    memory.fill(np.array([first.seq, second.seq]), np.array([10, 3], np.int32))
    memory.audit()
    assert memory.usage().token_states == 13


def test_what_a_failed_step_was_to_compute_is_not_found() -> None:
    memory = BlockManager(20, 4, 4)
    memory.step = 1
    first = memory.admit_prefix(Prefix(ids(range(10))))
    memory.register(first.seq, ids(range(10)), 10)
    memory.release(first.seq)
    memory.step = 2
    assert memory.lookup(Prefix(ids(range(10)))).num_tokens == 0
    assert memory.usage().cached == 0
    memory.audit()


def test_the_oldest_goes_first_and_of_a_chain_its_end() -> None:
    world = World(8, 2)
    for start in (0, 100, 200):
        seq, _ = world.admit([start, start + 1, start + 2, start + 3, start + 4])
        world.release(seq, ended=False)
    seq, cached = world.admit([0, 1, 2, 3, 9])
    assert cached == 4
    world.release(seq, ended=False)
    evicted: list[int] = []
    world.events.subscribe(lambda event: evicted.extend(event.blocks.tolist()) if isinstance(event, Evict) else None)
    expected = [world.memory.lookup(Prefix(ids([100, 101, 102, 103, 0]))).blocks[i] for i in (1, 0)]
    world.admit([7] * 8)
    assert evicted == expected
    assert world.memory.lookup(Prefix(ids([0, 1, 2, 3, 9]))).num_tokens == 4


def test_a_near_miss_says_where_it_differed() -> None:
    world = World(20, 4)
    seq, _ = world.admit(list(range(12)))
    world.release(seq, ended=True)
    world.memory.step += 1
    assert world.memory.lookup(Prefix(ids([0, 1, 2, 3, 4, 99, 6, 7]))).divergence == (5, 5)
    assert world.memory.lookup(Prefix(ids([99, 1, 2, 3, 4]))).divergence == (0, 0)
    assert world.memory.lookup(Prefix(ids(range(30)))).divergence is None, "the cached one ended, it did not differ"


class TestPins:
    @pytest.fixture
    def world(self) -> Iterator[World]:
        world = World(8, 2)
        seq, _ = world.admit([1, 2, 3, 4, 5])
        world.release(seq, ended=False)
        yield world
        world.memory.audit()

    def fill_up(self, world: World, blocks: int) -> None:
        world.release(world.admit([50 + i for i in range(2 * blocks)])[0], ended=False)

    def test_a_pinned_prefix_outlives_others(self, world: World) -> None:
        pin, covered = world.memory.pin(Prefix(ids([1, 2, 3, 4, 5])))
        assert covered == 4
        self.fill_up(world, 6)
        assert world.memory.lookup(Prefix(ids([1, 2, 3, 4, 5]))).num_tokens == 4
        world.memory.unpin(pin)
        self.fill_up(world, 8)
        assert world.memory.lookup(Prefix(ids([1, 2, 3, 4, 5]))).num_tokens == 0

    def test_pins_give_way_before_a_request_has_to_wait(self, world: World) -> None:
        pin, _ = world.memory.pin(Prefix(ids([1, 2, 3, 4, 5])))
        assert world.memory.can_admit(16)
        self.fill_up(world, 8)
        assert world.memory.cache_counts().pinned_blocks == 0
        world.memory.unpin(pin)

    def test_a_pin_ends_with_its_time(self, world: World) -> None:
        pin, _ = world.memory.pin(Prefix(ids([1, 2, 3, 4, 5])), expires=10.0)
        assert world.memory.expire_pins(9.0) == []
        assert world.memory.expire_pins(10.0) == [pin]
        with pytest.raises(UnknownPin):
            world.memory.unpin(pin)

    def test_of_what_was_pinned_too_the_end_goes_first(self, world: World) -> None:
        seq, _ = world.admit([1, 2, 3, 4, 5])
        chain = world.memory.table(seq)[:2].tolist()
        world.release(seq, ended=False)
        pin, _ = world.memory.pin(Prefix(ids([1, 2, 3, 4, 5])))
        assert world.memory.cached_blocks().tolist() == chain[::-1]
        world.memory.unpin(pin)
        assert world.memory.cached_blocks().tolist() == chain[::-1]

    def test_a_pin_beyond_the_allowance_is_refused_and_pins_nothing(self, world: World) -> None:
        long = list(range(100, 111))
        world.release(world.admit(long)[0], ended=False)
        with pytest.raises(PinTooLarge, match=r"5 blocks.*0 are pinned.*at most 4"):
            world.memory.pin(Prefix(ids(long)))
        assert world.memory.cache_counts().pinned_blocks == 0


def test_the_cache_may_be_reset_while_sequences_run() -> None:
    world = World(20, 2)
    seq, _ = world.admit([1, 2, 3, 4, 5])
    world.memory.reset_prefix_cache()
    world.grow(seq, 6)
    world.check_all()
    world.release(seq, ended=True)
    world.memory.audit()
    assert world.memory.usage().cached == 0
    _, cached = world.admit([1, 2, 3, 4, 5])
    assert cached == 0


def test_registering_is_told() -> None:
    world = World(20, 2)
    events: list[MemoryEvent] = []
    world.events.subscribe(events.append)
    seq, _ = world.admit([1, 2, 3, 4, 5])
    registered = [event for event in events if isinstance(event, Register)]
    assert [event.blocks.tolist() for event in registered] == [world.memory.table(seq)[:2].tolist()]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Prefix(np.array([], np.int32)),
        lambda: Prefix(np.array([1, 2], np.int64)),
        lambda: Prefix(np.array([[1]], np.int32)),
        lambda: Prefix(ids([1]), "x" * 5000),
    ],
)
def test_a_prefix_that_is_none_is_refused(wrong: Callable[[], Prefix]) -> None:
    with pytest.raises(InvalidSize):
        wrong()


def test_a_shortened_sequence_rewrites_what_was_shared_when_it_was_cut() -> None:
    world = World(20, 4)
    seq, _ = world.admit(list(range(8)))
    fork, _ = world.memory.fork(seq)
    world.memory.truncate(seq, 6)
    world.memory.release(fork)
    assert len(world.memory.append(np.array([seq])).source) == 0, "it is the only holder and writes in place"
    world.memory.step += 1
    assert world.memory.lookup(Prefix(ids(range(9)))).num_tokens == 4


def test_who_looked_while_it_was_computed_looks_again() -> None:
    """In the step that computes a block nothing can be copied from it, but in the next one."""
    world = World(20, 4)
    world.memory.step = 1
    seq = world.memory.admit_prefix(Prefix(ids(range(9)))).seq
    world.memory.register(seq, ids(range(9)), 8)
    other = Prefix(ids([0, 1, 2, 3, 4, 5, 99, 99]))
    assert world.memory.lookup(other).num_tokens == 4
    world.memory.step = 2
    assert world.memory.lookup(other).num_tokens == 6
    assert world.memory.lookup(other).divergence == (6, 6)


def test_scopes_that_come_and_go_leave_nothing() -> None:
    world = World(20, 4)
    world.admit([1, 2, 3], "about to begin")
    world.release(world.admit(list(range(5)), "in the cache")[0], ended=False)
    for number in range(5000):
        world.memory.lookup(Prefix(ids([1]), f"visitor {number}"))
    assert len(world.memory._prefixes.index._roots) < 2000
    (begun,) = world.live
    world.grow(begun, 2)
    world.memory.step += 1
    assert world.memory.lookup(Prefix(ids([1, 2, 3, 2, 9]), "about to begin")).num_tokens == 4
    assert world.memory.lookup(Prefix(ids(range(5)), "in the cache")).num_tokens == 4
    # One number each: a new scope never goes on from the root of an old one.
    roots = [entry for entry, _ in world.memory._prefixes.index._roots.values()]
    assert len(set(roots)) == len(roots)


@pytest.mark.parametrize("same_tokens", [True, False])
def test_a_hash_that_collides_gives_away_nothing(same_tokens: bool) -> None:
    """Neither another text's blocks, nor the same text's of another tenant."""
    world = World(40, 4)
    index = world.memory._prefixes.index
    index._multipliers = np.zeros(4096, np.uint64)
    for number, scope in enumerate(("one tenant", "another")):
        index._roots[scope] = (-1 - number, 12345)
    world.release(world.admit(list(range(12)), "one tenant")[0], ended=True)
    tokens = list(range(12)) if same_tokens else list(range(20, 32))
    assert world.memory.lookup(Prefix(ids(tokens), "another")).num_tokens == 0
    assert world.memory.lookup(Prefix(ids(tokens), "another")).divergence is None
    if not same_tokens:
        assert world.memory.lookup(Prefix(ids(tokens), "one tenant")).num_tokens == 0
    seq, cached = world.admit(tokens, "another")
    assert cached == 0
    world.check_all()
    world.release(seq, ended=True)
    world.check_all()
