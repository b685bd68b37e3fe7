from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.errors import ConfigurationError
from looseleaf.memory import (
    ALLOCATORS,
    ContiguousManager,
    EventStream,
    InvalidSize,
    OutOfBlocks,
    RegionFull,
    make_manager,
)
from looseleaf.memory.contiguous import RESERVE_MAX, RESERVE_ORACLE, RESERVE_POW2, Reservation


def region_blocks(reservation: Reservation, num_tokens: int, final_tokens: int | None) -> int:
    memory = ContiguousManager(128, 16, 4, 128, reservation=reservation, max_model_len=1_024)
    return memory.region(memory.admit(num_tokens, final_tokens=final_tokens)).blocks


def test_each_policy_reserves_what_its_paper_says() -> None:
    """A prompt of 100 tokens and 60 of output, at block size 16 and a maximum of 1,024 tokens."""
    assert region_blocks(RESERVE_MAX, 100, 160) == 64
    assert region_blocks(RESERVE_ORACLE, 100, 160) == 10
    assert region_blocks(RESERVE_POW2, 100, 160) == 16, "100 + 64 = 164 tokens = 11 blocks, rounded up to a buddy"
    assert region_blocks(RESERVE_POW2, 100, 228) == 16, "128 is a power of two already: 228 tokens = 15 blocks"
    assert region_blocks(RESERVE_POW2, 100, 229) == 32, "129 becomes 256"
    assert region_blocks(RESERVE_POW2, 16, None) == 1, "nothing to come, nothing reserved"


def test_regions_are_consecutive_blocks() -> None:
    memory = ContiguousManager(64, 4, 4, 16, reservation=RESERVE_ORACLE)
    memory.admit(10)
    seq = memory.admit(5, final_tokens=21)
    assert memory.table(seq).tolist() == [3, 4, 5, 6, 7, 8]


def test_usage_tells_reserved_from_wasted() -> None:
    memory = ContiguousManager(64, 4, 4, 8, reservation=RESERVE_MAX)
    memory.admit(10, final_tokens=21, filled=7)
    usage = memory.usage()
    assert (usage.token_states, usage.reserved, usage.internal_fragmentation) == (7, 14, 11)
    assert usage.free == 56 * 4


@pytest.mark.parametrize(
    ("reservation", "lengths", "released", "wanted"),
    [(RESERVE_ORACLE, [8] * 8, [0, 2, 4, 6], 12), (RESERVE_POW2, [8] * 8, [1, 2, 5, 6], 16)],
    ids=["first-fit", "buddies"],
)
def test_external_fragmentation_refuses_what_the_free_total_could_hold(
    reservation: Reservation, lengths: list[int], released: list[int], wanted: int
) -> None:
    memory = ContiguousManager(16, 4, 9, 16, reservation=reservation)
    seqs = [memory.admit(length) for length in lengths]
    assert memory.num_free_blocks == 0
    for index in released:
        memory.release(seqs[index])
    needed = memory.blocks_for(wanted)
    assert memory.num_free_blocks == 8 >= needed
    assert not memory.can_admit(wanted)
    assert memory.can_ever_fit(wanted)
    with pytest.raises(OutOfBlocks, match="the largest hole has") as refusal:
        memory.admit(wanted)
    assert (refusal.value.needed, refusal.value.free) == (needed, 8)
    assert memory.usage().largest_free_run < memory.usage().free
    memory.audit()


def test_buddies_do_not_merge_across_even_when_their_holes_touch() -> None:
    """Blocks 2-5 are free and lie together, but are halves of different buddies."""
    memory = ContiguousManager(8, 1, 4, 8, reservation=RESERVE_POW2)
    seqs = [memory.admit(2) for _ in range(4)]
    memory.release(seqs[1])
    memory.release(seqs[2])
    assert memory.usage().largest_free_run == 2
    assert not memory.can_admit(4)


def test_a_fork_copies_only_blocks_that_hold_tokens() -> None:
    memory = ContiguousManager(64, 4, 4, 8, reservation=RESERVE_MAX)
    seq = memory.admit(9, filled=9)
    child, copies = memory.fork(seq)
    assert copies.source.tolist() == [0, 1, 2]
    assert copies.destination.tolist() == [8, 9, 10]
    assert memory.table(child).tolist() == list(range(8, 16))
    assert memory.usage().saved_by_sharing == 0


def test_a_fork_expects_to_grow_as_far_as_its_parent_unless_told() -> None:
    memory = ContiguousManager(64, 4, 4, 16, reservation=RESERVE_ORACLE)
    seq = memory.admit(9, filled=9, final_tokens=30)
    assert memory.region(memory.fork(seq)[0]).blocks == 8
    assert memory.region(memory.fork(seq, final_tokens=12)[0]).blocks == 3


def test_a_region_cannot_be_outgrown() -> None:
    memory = ContiguousManager(64, 4, 4, 16, reservation=RESERVE_ORACLE)
    small, large = memory.admit(4, final_tokens=7), memory.admit(4, final_tokens=40)
    both = np.array([large, small])
    memory.append(both, 4)
    with pytest.raises(RegionFull, match="1 blocks more than its region of 2"):
        memory.append(both)
    with pytest.raises(InvalidSize, match="65 tokens are more than the 64 that a table row addresses"):
        memory.append(both, 57)
    assert memory.lengths[:2].tolist() == [8, 8]


def test_truncating_keeps_the_region() -> None:
    memory = ContiguousManager(64, 4, 4, 16, reservation=RESERVE_ORACLE)
    seq = memory.admit(20, filled=20)
    memory.truncate(seq, 3)
    assert len(memory.table(seq)) == 5
    assert memory.usage().token_states == 3
    memory.append(np.array([seq]), 17)


@pytest.mark.parametrize("max_model_len", [65, 0, -1, 2**40, 1.5])
def test_max_model_len_must_fit_a_row(allocator: str, max_model_len: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"max_model_len is {max_model_len}"):
        make_manager(allocator, 64, 4, 4, 16, max_model_len=max_model_len)
    make_manager(allocator, 64, 4, 4, 16, max_model_len=64)


@pytest.mark.parametrize("reservation", [RESERVE_MAX, RESERVE_POW2, RESERVE_ORACLE], ids=lambda r: r.name)
def test_blocks_kept_free_for_growth_are_not_asked_of_those_that_have_reserved_it(reservation: Reservation) -> None:
    memory = ContiguousManager(16, 16, 8, 4, reservation=reservation, max_model_len=64)
    seqs = []
    for _ in range(4):
        assert memory.can_admit(33, final_tokens=64, keep_free=1)
        seqs.append(memory.admit(33, final_tokens=64))
    assert memory.num_free_blocks == 0
    assert not memory.can_admit(1)
    memory.append(np.array(seqs), 31)


def test_a_region_longer_than_its_row_is_told_whole() -> None:
    stream, events = EventStream(), []
    stream.subscribe(events.append)
    memory = ContiguousManager(8, 4, 2, 3, reservation=RESERVE_POW2, events=stream)
    seq = memory.admit(9, filled=9)
    assert memory.table(seq).tolist() == [0, 1, 2]
    child, copies = memory.fork(seq)
    assert copies.destination.tolist() == [4, 5, 6]
    memory.release(seq)
    allocate, copy, rest, free = events
    assert allocate.blocks.tolist() == [0, 1, 2, 3]
    assert copy.blocks.tolist() + rest.blocks.tolist() == [4, 5, 6, 7]
    assert rest.sequences.tolist() == [child]
    assert (free.blocks.tolist(), free.returned.tolist()) == ([0, 1, 2, 3], [True] * 4)


@given(
    allocator=st.sampled_from(ALLOCATORS),
    num_blocks=st.integers(1, 40),
    block_size=st.integers(1, 6),
    width=st.integers(1, 48),
    data=st.data(),
)
def test_what_can_ever_fit_does_fit_the_empty_pool_whatever_its_prompt(
    allocator: str, num_blocks: int, block_size: int, width: int, data: st.DataObject
) -> None:
    """So a scheduler that checks once never waits for ever."""
    longest = width * block_size
    max_model_len = data.draw(st.integers(1, longest))
    memory = make_manager(allocator, num_blocks, block_size, 1, width, max_model_len=max_model_len)
    final = data.draw(st.integers(1, longest + 2))
    prompt = data.draw(st.integers(1, final))
    if not memory.can_ever_fit(final):
        assert not memory.can_admit(final, final_tokens=final)
        return
    assert memory.can_admit(prompt, final_tokens=final)
    seq = memory.admit(prompt, final_tokens=final)
    if final > prompt:
        memory.append(np.array([seq]), final - prompt)
    memory.audit()
