"""Appending for several steps at once is appending step by step."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.memory import ALLOCATORS, InvalidSize, KVMemory, OutOfBlocks, Prefix, make_manager


class Newcomer(NamedTuple):
    tokens: int
    more: int
    named: bool
    """It takes part in the prefix cache, where all prompts begin alike."""
    forked: bool


newcomers = st.builds(Newcomer, st.integers(1, 9), st.integers(0, 20), st.booleans(), st.booleans())


def populated(allocator: str, num_blocks: int, block_size: int, script: list[Newcomer]) -> tuple[KVMemory, list[int]]:
    memory = make_manager(allocator, num_blocks, block_size, 8)
    seqs: list[int] = []
    for tokens, more, named, forked in script:
        final = min(tokens + more, num_blocks * block_size)
        if tokens > final or not memory.can_admit(tokens, final_tokens=final):
            continue
        if named:
            prefix = Prefix(np.arange(tokens, dtype=np.int32))
            admission = memory.admit_prefix(prefix, final_tokens=final)
            seqs.append(admission.seq)
            memory.fill(np.array(seqs[-1:]), tokens - admission.num_cached)
            memory.register(seqs[-1], prefix.tokens, tokens)
            memory.step += 1
        else:
            seqs.append(memory.admit(tokens, final_tokens=final, filled=tokens))
        if forked:
            with suppress(OutOfBlocks):
                seqs.append(memory.fork(seqs[-1])[0])
    return memory, seqs


@given(
    allocator=st.sampled_from(ALLOCATORS),
    num_blocks=st.integers(4, 24),
    block_size=st.integers(1, 5),
    script=st.lists(newcomers, min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
    count=st.integers(1, 8),
    most=st.integers(1, 30),
)
def test_many_steps_at_once_do_what_single_ones_do(allocator, num_blocks, block_size, script, order, count, most):
    memory, seqs = populated(allocator, num_blocks, block_size, script)
    single, _ = populated(allocator, num_blocks, block_size, script)
    order.shuffle(seqs)
    ids = np.array(seqs[:count], np.int64)
    possible = memory.appendable_steps(ids, most)
    assert 0 <= possible <= most
    copies, taken = [], []
    for _ in range(possible):
        before = single.num_free_blocks
        copies += [(int(s), int(d)) for s, d in zip(*single.append(ids), strict=True)]
        taken.append(before - single.num_free_blocks)
        single.fill(ids, 1)
    if possible < most:
        with pytest.raises((OutOfBlocks, InvalidSize)):
            memory.append_steps(ids, possible + 1)
    if possible:
        pairs, blocks = memory.append_steps(ids, possible)
        memory.fill(ids, possible)
        assert [(int(s), int(d)) for s, d in zip(*pairs, strict=True)] == copies
        assert blocks.tolist() == taken
    assert_same(memory, single)
    memory.audit()
    if possible < most:
        with pytest.raises((OutOfBlocks, InvalidSize)):
            single.append(ids)


def assert_same(one: KVMemory, other: KVMemory) -> None:
    assert np.array_equal(one.block_tables, other.block_tables)
    assert np.array_equal(one.lengths, other.lengths)
    assert one.usage() == other.usage()
    if one.describe()["allocator"] == "paged":
        assert one._pool.free_blocks().tolist() == other._pool.free_blocks().tolist()
        assert one._pool.refcounts.tolist() == other._pool.refcounts.tolist()


@given(
    num_blocks=st.integers(4, 24),
    block_size=st.integers(1, 5),
    script=st.lists(newcomers, min_size=1, max_size=4),
    grown=st.integers(0, 4),
)
def test_full_shared_blocks_need_not_be_looked_at_one_by_one(num_blocks, block_size, script, grown):
    memory, seqs = populated("paged", num_blocks, block_size, script)
    ids = np.array(seqs, np.int64)
    if steps := memory.appendable_steps(ids, grown) if grown else 0:
        memory.append_steps(ids, steps)
    quick = memory.usage()
    memory._only_full_are_shared = lambda: False
    assert memory.usage() == quick
