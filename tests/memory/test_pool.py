from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.memory.pool import BlockPool


def pool_of(num_blocks: int) -> BlockPool:
    """A pool whose blocks' content can never be found again."""
    return BlockPool(num_blocks, findable=np.zeros(num_blocks, np.int64), on_evict=lambda _: None)


def blocks(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_a_fresh_pool_hands_out_ascending_blocks_and_the_last_freed_come_first_in_their_order() -> None:
    pool = pool_of(6)
    assert pool.allocate(4).tolist() == [0, 1, 2, 3]
    assert pool.drop(blocks(1, 3)).tolist() == [True, True]
    assert pool.free_blocks().tolist() == [1, 3, 4, 5]
    assert pool.allocate(3).tolist() == [1, 3, 4]


def test_a_block_is_free_only_when_its_last_holder_is_gone() -> None:
    pool = pool_of(4)
    held = pool.allocate(3)
    pool.share(held[:2])
    assert (pool.num_free, pool.num_references, pool.num_shared) == (1, 5, 2)
    assert pool.drop(held).tolist() == [False, False, True]
    assert (pool.num_free, pool.num_references, pool.num_shared) == (2, 2, 0)
    assert pool.drop(held[:2]).tolist() == [True, True]
    assert (pool.num_free, pool.num_references) == (4, 0)


def test_unsharing_counts_a_block_as_often_as_it_is_named() -> None:
    pool = pool_of(2)
    held = pool.allocate(1)
    for _ in range(3):
        pool.share(held)
    pool.unshare(blocks(0, 0, 0))
    assert pool.refcounts.tolist() == [1, 0]
    assert pool.num_shared == 0


@given(num_blocks=st.integers(1, 12), moves=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 10**6)), max_size=50))
def test_the_books_are_those_of_a_plain_count(num_blocks: int, moves: list[tuple[int, int]]) -> None:
    pool, counts = pool_of(num_blocks), Counter[int]()
    for kind, number in moves:
        held = sorted(counts)
        chosen = [block for place, block in enumerate(held) if number >> place & 1]
        if kind == 0:
            taken = pool.allocate(number % (pool.num_free + 1)).tolist()
            assert not set(taken) & set(held)
            counts.update(taken)
        elif kind == 1:
            pool.share(blocks(*chosen))
            counts.update(chosen)
        else:
            returned = pool.drop(blocks(*chosen)).tolist()
            assert returned == [counts[block] == 1 for block in chosen]
            counts -= Counter(chosen)
        assert pool.refcounts.tolist() == [counts[block] for block in range(num_blocks)]
        assert sorted(pool.free_blocks().tolist()) == [block for block in range(num_blocks) if not counts[block]]
        assert pool.num_free == num_blocks - len(counts)
        assert pool.num_shared == counts.total() - len(counts)
        assert pool.audit(np.array([counts[block] for block in range(num_blocks)])) == []
