from __future__ import annotations

import doctest
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import looseleaf.memory
from looseleaf.errors import ConfigurationError
from looseleaf.memory import (
    BlockManager,
    DuplicateSequence,
    InvalidSize,
    OutOfBlocks,
    OutOfRows,
    UncomputedTokens,
    UnknownSequence,
    make_manager,
)


def held(memory: BlockManager) -> int:
    return memory.num_blocks - memory.num_free_blocks


def test_200_tokens_at_16_take_13_blocks_and_leave_8_slots_empty() -> None:
    memory = BlockManager(64, 16, 4)
    seq = memory.admit(200)
    assert memory.table(seq).tolist() == list(range(13)), "a fresh pool hands out ascending blocks"
    assert memory.usage().internal_fragmentation == 8


def test_a_third_block_is_taken_only_at_token_33() -> None:
    memory = BlockManager(64, 16, 4)
    seq = memory.admit(30, filled=30)
    assert len(memory.table(seq)) == 2
    memory.append(np.array([seq]))
    memory.append(np.array([seq]))
    assert len(memory.table(seq)) == 2
    memory.append(np.array([seq]))
    assert len(memory.table(seq)) == 3


def test_34_tokens_leave_14_slots_empty() -> None:
    memory = BlockManager(64, 16, 4)
    memory.admit(34, filled=30)
    usage = memory.usage()
    assert (usage.token_states, usage.reserved, usage.internal_fragmentation) == (30, 4, 14)
    assert usage.free == (64 - 3) * 16 == usage.largest_free_run


def test_four_samples_of_a_1000_token_prompt() -> None:
    memory = BlockManager(400, 16, 4)
    prompt = memory.admit(1_000, filled=1_000)
    samples = np.array([prompt] + [memory.fork(prompt)[0] for _ in range(3)])
    assert held(memory) == 63
    assert memory.usage().saved_by_sharing == 3 * 63 * 16
    copies = memory.append(samples)
    assert len(copies.source) == 3, "the last writer keeps the original"
    assert set(copies.source.tolist()) == {62}
    assert held(memory) == 66
    for _ in range(199):
        memory.fill(samples, 1)
        assert len(memory.append(samples).source) == 0
    assert held(memory) == 114
    memory.audit()

    unshared = BlockManager(400, 16, 4)
    alone = np.array([unshared.admit(1_000, filled=1_000) for _ in range(4)])
    unshared.append(alone, 200)
    assert held(unshared) == 300


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 8, 16, 32, 64, 128])
def test_mean_waste_is_half_a_block(block_size: int) -> None:
    """Lengths uniform over whole blocks leave 0 … block_size - 1 empty slots, each equally often."""
    count, blocks = 2_000, 1_024 // block_size
    memory = BlockManager(count * blocks, block_size, count, blocks)
    for length in np.random.default_rng(block_size).integers(1, blocks * block_size, size=count, endpoint=True):
        memory.admit(int(length))
    mean = memory.usage().internal_fragmentation / count
    deviation = np.sqrt((block_size**2 - 1) / 12 / count)
    assert abs(mean - (block_size - 1) / 2) <= 3.3 * deviation


@given(
    holders=st.integers(2, 7),
    writers=st.integers(1, 7),
    length=st.integers(1, 20),
    block_size=st.integers(1, 6),
)
def test_all_sharers_but_the_last_copy(holders: int, writers: int, length: int, block_size: int) -> None:
    writers = min(writers, holders)
    memory = BlockManager(200, block_size, 8)
    seqs = [memory.admit(length, filled=length)]
    seqs += [memory.fork(seqs[0])[0] for _ in range(holders - 1)]
    copies = memory.append(np.array(seqs[:writers]))
    partial = length % block_size != 0
    assert len(copies.source) == (min(writers, holders - 1) if partial else 0)
    if partial and writers == holders:
        assert memory.table(seqs[-1])[-1] == copies.source[0], "the last in the batch keeps the original"
    memory.audit()


def test_a_fork_truncated_into_a_full_shared_block_copies_before_it_writes() -> None:
    memory = BlockManager(8, 4, 4)
    first = memory.admit(8, filled=8)
    second, _ = memory.fork(first)
    memory.truncate(second, 6)
    assert memory.table(second).tolist() == memory.table(first).tolist()
    copies = memory.append(np.array([first, second]))
    assert (copies.source.tolist(), copies.destination.tolist()) == ([1], [2])
    assert memory.table(first).tolist() == [0, 1, 3]
    assert memory.table(second).tolist() == [0, 2]


def test_once_the_other_holder_is_gone_the_block_is_written_in_place() -> None:
    memory = BlockManager(8, 4, 4)
    first = memory.admit(3, filled=3)
    second, _ = memory.fork(first)
    memory.release(first)
    assert len(memory.append(np.array([second])).source) == 0


def test_truncating_gives_back_whole_tail_blocks_and_uncounts_what_was_computed() -> None:
    memory = BlockManager(8, 4, 4)
    seq = memory.admit(14, filled=14)
    memory.truncate(seq, 5)
    assert held(memory) == 2
    assert memory.usage().token_states == 5
    memory.append(np.array([seq]))
    memory.fill(np.array([seq]), 1)
    with pytest.raises(InvalidSize):
        memory.fill(np.array([seq]), 1)


def test_a_released_id_stays_unknown_when_its_row_is_reused() -> None:
    memory = BlockManager(8, 4, 1)
    stale = memory.admit(1)
    memory.release(stale)
    fresh = memory.admit(1)
    assert fresh != stale
    calls: list[Callable[[int], object]] = [
        memory.release,
        memory.table,
        memory.fork,
        lambda seq: memory.truncate(seq, 1),
    ]
    for call in calls:
        with pytest.raises(UnknownSequence):
            call(stale)
    with pytest.raises(UnknownSequence):
        memory.append(np.array([fresh, stale]))
    memory.audit()


@pytest.mark.parametrize("seq", [-1, 0, 7, 2**62, -(2**62), 2**70, 1.0, "1", None])
def test_ids_that_were_never_issued(seq: Any, allocator: str) -> None:
    memory = make_manager(allocator, 8, 4, 2)
    with pytest.raises(UnknownSequence):
        memory.release(seq)
    with pytest.raises(UnknownSequence):
        memory.append(np.array([seq]))


def test_a_sequence_named_twice(allocator: str) -> None:
    memory = make_manager(allocator, 64, 4, 2, 16)
    seq = memory.admit(1, final_tokens=30)
    for seqs in ([seq, seq], [seq] * 3):
        with pytest.raises(DuplicateSequence):
            memory.append(np.array(seqs))
        with pytest.raises(DuplicateSequence):
            memory.fill(np.array(seqs), 0)


@pytest.mark.parametrize("size", [0, -1, -(2**40), 2**40, 1.0, "1", True, None, np.float32(1), float("nan")])
def test_absurd_sizes(size: Any, allocator: str) -> None:
    memory = make_manager(allocator, 64, 4, 4, 8)
    seq = memory.admit(4, final_tokens=8, filled=4)
    free = memory.num_free_blocks
    calls = [
        lambda: memory.admit(size),
        lambda: memory.append(np.array([seq]), size),
        lambda: memory.truncate(seq, size),
        lambda: memory.can_admit(size),
    ]
    for call in calls:
        with pytest.raises(InvalidSize):
            call()
    if size is not None:
        for call in (
            lambda: memory.admit(1, final_tokens=size),
            lambda: memory.fork(seq, final_tokens=size),
        ):
            with pytest.raises(InvalidSize):
                call()
    if size != 0:
        for call in (
            lambda: memory.admit(1, filled=2 if size is True else size),
            lambda: memory.fill(np.array([seq]), size),
            lambda: memory.can_admit(1, keep_free=-1 if size == 2**40 else size),
        ):
            with pytest.raises(InvalidSize):
                call()
    assert memory.num_free_blocks == free
    memory.audit()


def test_badly_shaped_arguments(allocator: str) -> None:
    memory = make_manager(allocator, 64, 4, 4, 8)
    seq = memory.admit(4)
    with pytest.raises(InvalidSize):
        memory.append(np.array([[seq]]))
    with pytest.raises(InvalidSize):
        memory.fill(np.array([seq]), np.array([1, 1], np.int32))
    with pytest.raises(InvalidSize):
        memory.fill(np.array([seq]), np.array([1.0]))
    with pytest.raises(InvalidSize):
        memory.fill(np.array([seq]), 5)


def test_an_empty_batch_is_no_work(allocator: str) -> None:
    memory = make_manager(allocator, 8, 4, 2)
    assert len(memory.append(np.empty(0, np.int64)).source) == 0
    memory.fill(np.empty(0, np.int64), 1)
    memory.audit()


def test_narrower_integer_ids_are_ids_too(allocator: str) -> None:
    memory = make_manager(allocator, 8, 4, 2, 4)
    seq = memory.admit(1, final_tokens=4)
    memory.append(np.array([seq], np.int32))
    memory.append(np.array([seq], np.uint64))
    assert memory.lengths.tolist() == [3, 0]
    memory.release(np.array([seq])[0])


def test_a_sequence_longer_than_its_row(allocator: str) -> None:
    memory = make_manager(allocator, 64, 4, 4, 2)
    with pytest.raises(InvalidSize):
        memory.admit(9)
    assert not memory.can_admit(9)
    assert not memory.can_ever_fit(9)
    assert memory.can_ever_fit(8)


def test_appending_beyond_the_row() -> None:
    memory = BlockManager(64, 4, 4, 2)
    seq = memory.admit(8)
    with pytest.raises(InvalidSize):
        memory.append(np.array([seq]))


def test_more_sequences_than_rows(allocator: str) -> None:
    memory = make_manager(allocator, 64, 4, 1, 2)
    seq = memory.admit(1, filled=1)
    assert not memory.can_admit(1)
    with pytest.raises(OutOfRows):
        memory.admit(1)
    with pytest.raises(OutOfRows):
        memory.fork(seq)
    memory.audit()


def test_tokens_that_are_not_computed_cannot_be_forked(allocator: str) -> None:
    memory = make_manager(allocator, 64, 4, 4, 2)
    seq = memory.admit(4, filled=3)
    with pytest.raises(UncomputedTokens):
        memory.fork(seq)
    memory.fill(np.array([seq]), 1)
    memory.fork(seq)


def test_what_could_never_fit_is_refused_with_the_numbers() -> None:
    memory = BlockManager(4, 16, 4, 100)
    assert not memory.can_ever_fit(65)
    with pytest.raises(OutOfBlocks, match="5 blocks are needed and 4 are free"):
        memory.admit(65)


def test_keep_free_is_what_an_admission_leaves() -> None:
    memory = BlockManager(10, 4, 4)
    assert memory.can_admit(16, keep_free=6)
    assert not memory.can_admit(16, keep_free=7)


def test_kernels_see_the_tables_but_cannot_write_them(allocator: str) -> None:
    memory = make_manager(allocator, 64, 4, 4, 2)
    memory.admit(4)
    assert memory.block_tables.dtype == memory.lengths.dtype == np.int32
    assert memory.block_tables.flags.c_contiguous
    for array in (memory.block_tables, memory.lengths):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_a_table_is_a_copy(allocator: str) -> None:
    memory = make_manager(allocator, 64, 4, 4, 2)
    seq = memory.admit(4)
    memory.table(seq)[0] = 63
    assert memory.table(seq)[0] == 0


@pytest.mark.parametrize("field", ["num_blocks", "block_size", "max_num_seqs", "max_blocks_per_seq"])
@pytest.mark.parametrize("value", [0, -1, 2**31, 1.5])
def test_impossible_pools(field: str, value: Any, allocator: str) -> None:
    geometry: dict[str, Any] = {"num_blocks": 8, "block_size": 4, "max_num_seqs": 4, "max_blocks_per_seq": 2}
    with pytest.raises(ConfigurationError, match=field):
        make_manager(allocator, **geometry | {field: value})


def test_sequences_whose_length_would_not_fit_into_int32(allocator: str) -> None:
    with pytest.raises(ConfigurationError, match="max_blocks_per_seq"):
        make_manager(allocator, 8, 2**20, 4, 2**11)


def test_settings_in_numpys_integers_do_not_overflow(allocator: str) -> None:
    with pytest.raises(ConfigurationError, match="max_blocks_per_seq"):
        make_manager(allocator, np.int32(8), np.int32(2**20), np.int32(4), np.int32(2**11))  # type: ignore[arg-type]
    memory = make_manager(allocator, np.int32(8), np.int16(2**14), np.int8(4), np.int32(2**3))  # type: ignore[arg-type]
    settings = {name: value for name, value in memory.describe().items() if name != "allocator"}
    assert {type(value) for value in settings.values()} == {int}
    assert not memory.can_ever_fit(2**17 + 1)
    assert memory.can_ever_fit(2**17)
    memory.admit(2**17)
    assert memory.usage().token_states + memory.usage().reserved == 2**17


def test_block_tables_that_no_host_can_hold(allocator: str) -> None:
    with pytest.raises(ConfigurationError, match="16777214 block tables of 2147483647 blocks"):
        make_manager(allocator, 1, 1, 2**24 - 2, 2**31 - 1)


def test_a_pool_that_the_host_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise MemoryError("Unable to allocate")

    monkeypatch.setattr("looseleaf.memory.prefix_cache.BlockPool", refuse)
    with pytest.raises(ConfigurationError, match="a pool of 8 blocks: Unable to allocate"):
        BlockManager(8, 4, 4)


def test_the_longest_sequence_int32_can_count() -> None:
    memory = BlockManager(1, 2**31 - 1, 1)
    seq = memory.admit(2**31 - 2)
    memory.append(np.array([seq]))
    assert memory.lengths[0] == 2**31 - 1
    with pytest.raises(InvalidSize):
        memory.append(np.array([seq]))
    memory.audit()


def test_describe_has_settings_and_live_counts(allocator: str) -> None:
    memory = make_manager(allocator, 64, 4, 5, 2)
    memory.admit(8)
    assert memory.describe() == {
        "allocator": allocator,
        "num_blocks": 64,
        "block_size": 4,
        "max_num_seqs": 5,
        "max_blocks_per_seq": 2,
        "num_free_blocks": 62,
        "num_sequences": 1,
    }


def test_an_unknown_allocator_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="paged, contiguous-max, contiguous-pow2, contiguous-oracle"):
        make_manager("slab", 8, 4, 4)


def test_the_example_in_the_documentation() -> None:
    assert doctest.testmod(looseleaf.memory).failed == 0
