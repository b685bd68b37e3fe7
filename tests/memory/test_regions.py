from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_memory import NaiveFirstFit, NaiveMemory, NaivePow2, NaiveSequence

from looseleaf.memory.regions import BuddyRegions, FirstFit, Placement, Region

PAIRS: dict[type[Placement], type[NaiveFirstFit] | type[NaivePow2]] = {FirstFit: NaiveFirstFit, BuddyRegions: NaivePow2}


@pytest.mark.parametrize("placement", PAIRS)
@given(num_blocks=st.integers(1, 70), moves=st.lists(st.integers(-30, 40), max_size=60))
def test_every_region_is_where_a_plain_search_finds_it(
    placement: type[Placement], num_blocks: int, moves: list[int]
) -> None:
    """A positive move allocates that many blocks, any other one frees one of the live regions."""
    real = placement(num_blocks)  # type: ignore[call-arg]  # every placement is made from the pool's size
    naive: NaiveMemory = PAIRS[placement](num_blocks, 1, 0, num_blocks, num_blocks)
    live: list[Region] = []
    for move in moves:
        if move > 0:
            size = real.rounded(move)
            start = naive.place(size)  # type: ignore[attr-defined]  # of the contiguous models
            region = real.allocate(move)
            assert region == (None if start is None else Region(start, size))
            if region is not None:
                live.append(region)
                naive.sequences[region.start] = NaiveSequence([], 0, list(range(region.start, region.end)))
        elif live:
            region = live.pop(move % len(live))
            real.free(region)
            del naive.sequences[region.start]
        assert real.audit() == []
        assert real.num_free == naive.free == sum(hole.blocks for hole in real.holes())
        assert real.largest_hole == naive.largest_hole()
    for region in live:
        real.free(region)
    assert real.holes() == placement(num_blocks).holes()  # type: ignore[call-arg]


def test_buddy_roots_cover_a_pool_that_is_no_power_of_two() -> None:
    assert BuddyRegions(13).holes() == [Region(0, 8), Region(8, 4), Region(12, 1)]
    assert BuddyRegions(13).largest_possible == 8


@pytest.mark.parametrize(("blocks", "rounded"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1025, 2048)])
def test_buddies_round_up_to_powers_of_two(blocks: int, rounded: int) -> None:
    assert BuddyRegions(4096).rounded(blocks) == rounded
