from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from trial import snapshot

from looseleaf.memory import BlockManager, KVMemory, OutOfBlocks, make_manager


def refused_without_a_trace(memory: KVMemory, call: Callable[[], object]) -> None:
    before = snapshot(memory)
    with pytest.raises(OutOfBlocks):
        call()
    assert snapshot(memory) == before
    memory.audit()


def test_with_the_pool_full_each_operation_fails_whole() -> None:
    memory = BlockManager(10, 4, 8)
    first = memory.admit(14, filled=14)
    second, _ = memory.fork(first)
    third = memory.admit(24, filled=24)
    assert memory.num_free_blocks == 0
    full = memory.usage()
    refused_without_a_trace(memory, lambda: memory.admit(1))
    refused_without_a_trace(memory, lambda: memory.append(np.array([third])))
    refused_without_a_trace(memory, lambda: memory.append(np.array([second])))
    # The first sequence alone could have grown into its tail, had it been the only holder.
    refused_without_a_trace(memory, lambda: memory.append(np.array([first, third])))
    assert memory.usage() == full
    memory.fork(third)
    assert memory.num_free_blocks == 0


def test_one_block_short_is_refused_for_the_whole_batch() -> None:
    memory = BlockManager(7, 4, 8)
    seqs = np.array([memory.admit(4, filled=4) for _ in range(4)])
    refused_without_a_trace(memory, lambda: memory.append(seqs))
    with pytest.raises(OutOfBlocks) as refusal:
        memory.append(seqs)
    assert (refusal.value.needed, refusal.value.free) == (4, 3)
    memory.append(seqs[:3])


def test_the_full_pool_of_any_allocator(allocator: str) -> None:
    memory = make_manager(allocator, 8, 4, 8, 8, max_model_len=8)
    seqs = [memory.admit(8, filled=8) for _ in range(4)]
    assert memory.num_free_blocks == 0
    refused_without_a_trace(memory, lambda: memory.admit(1))
    refused_without_a_trace(memory, lambda: memory.append(np.array(seqs)))
    if allocator != "paged":
        refused_without_a_trace(memory, lambda: memory.fork(seqs[0]))


def test_after_every_release_the_pool_is_exactly_as_before(allocator: str) -> None:
    memory = make_manager(allocator, 32, 4, 8, 16, max_model_len=20)
    before: list[object] = []
    seqs: list[int] = []
    for length in (5, 9, 16, 1):
        before.append((memory.usage(), memory.num_free_blocks, memory.block_tables.tolist()))
        seqs.append(memory.admit(length, filled=length))
    while seqs:
        memory.release(seqs.pop())
        assert (memory.usage(), memory.num_free_blocks, memory.block_tables.tolist()) == before.pop()
        memory.audit()
    again = memory.admit(5)
    assert memory.table(again)[:2].tolist() == [0, 1], "what was released last is handed out first, in order"


def test_blocks_return_in_any_order_of_release() -> None:
    rng = np.random.default_rng(3)
    memory = BlockManager(64, 4, 16)
    for _ in range(50):
        seqs = [memory.admit(int(length), filled=int(length)) for length in rng.integers(1, 12, size=8)]
        seqs += [memory.fork(seq)[0] for seq in seqs[:4]]
        memory.append(np.array(seqs))
        for seq in rng.permutation(seqs):
            memory.release(int(seq))
            memory.audit()
        assert memory.num_free_blocks == 64
    everything = memory.admit(64 * 4)
    assert sorted(memory.table(everything)) == list(range(64))
