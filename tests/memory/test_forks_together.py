"""Forks of one sequence that grow apart: what is said to fit does, to the last token."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from looseleaf.memory import ALLOCATORS, KVMemory, OutOfBlocks, make_manager


def grow(memory: KVMemory, beams: int, prompt: int, final: int, swaps: list[tuple[int, int]]) -> None:
    """Admit one, fork the others, and let all grow to `final`; now and then one gives way to a fork of another."""
    first = memory.admit(prompt, final_tokens=final, filled=prompt)
    seqs = [first] + [memory.fork(first, final_tokens=final)[0] for _ in range(beams - 1)]
    for length in range(prompt, final):
        for dropped, kept in swaps:
            if length % 5 == dropped and dropped % beams != kept % beams:
                memory.release(seqs[dropped % beams])
                seqs[dropped % beams], _ = memory.fork(seqs[kept % beams], final_tokens=final)
        memory.append(np.array(seqs, np.int64))
        memory.fill(np.array(seqs, np.int64), 1)
    memory.audit()


@given(
    allocator=st.sampled_from(ALLOCATORS),
    num_blocks=st.integers(1, 60),
    block_size=st.integers(1, 8),
    beams=st.integers(2, 6),
    prompt=st.integers(1, 30),
    new=st.integers(1, 20),
    swaps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_forks_that_can_ever_fit_together_grow_to_their_end(
    allocator: str, num_blocks: int, block_size: int, beams: int, prompt: int, new: int, swaps: list[tuple[int, int]]
) -> None:
    memory = make_manager(
        allocator,
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=6,
        max_blocks_per_seq=ceil(50 / block_size),
    )
    final = prompt + new
    assume(memory.can_ever_fit(final, num_sequences=beams, shared_tokens=prompt))
    assert memory.can_admit(prompt, final_tokens=final, num_sequences=beams)
    grow(memory, beams, prompt, final, swaps)


@pytest.mark.parametrize(("num_blocks", "fits"), [(14, True), (13, False)])
def test_paged_forks_share_the_full_blocks_of_what_they_have_in_common(num_blocks: int, fits: bool) -> None:
    memory = make_manager("paged", num_blocks=num_blocks, block_size=4, max_num_seqs=4, max_blocks_per_seq=8)
    assert memory.can_ever_fit(20, num_sequences=4, shared_tokens=11) == fits  # 2 for all, 3 for each
    if fits:
        grow(memory, 4, 11, 20, [])
        assert memory.num_free_blocks == 0
    else:
        with pytest.raises(OutOfBlocks):
            grow(memory, 4, 11, 20, [])
    assert memory.can_ever_fit(20, num_sequences=4, shared_tokens=20)
    assert not memory.can_ever_fit(20, num_sequences=5, shared_tokens=20)  # there are four rows


def test_a_contiguous_fork_that_grows_as_far_has_a_region_as_large() -> None:
    memory = make_manager("contiguous-pow2", num_blocks=64, block_size=1, max_num_seqs=4, max_blocks_per_seq=32)
    first = memory.admit(8, final_tokens=12, filled=8)  # 8 and 4 more: 12, rounded to 16
    memory.append(np.array([first]), 3)
    memory.fill(np.array([first]), 3)
    free = memory.num_free_blocks
    memory.fork(first, final_tokens=12)
    assert memory.num_free_blocks == free - 16
