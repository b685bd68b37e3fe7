"""The search for the smallest pool: against every answer there can be, and on a real replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.errors import ConfigurationError
from looseleaf.replay.goodput import Slo
from looseleaf.replay.matrix import run_matrix
from looseleaf.replay.smallest_pool import RESOLUTION, PoolTry, Target, TargetOutOfReach, find_smallest_pool, search
from looseleaf.replay.store import ResultStore
from small_sweep import SHORT, SOURCE, PlainCost

TARGET = Target(Slo(ttft=1.0))


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.integers(1, 4))
def test_the_edge_is_found_from_anywhere(edge: int, start: int, width: int) -> None:
    asked: list[int] = []

    def trial(sizes: Sequence[int]) -> list[PoolTry]:
        asked.extend(sizes)
        return [PoolTry(size, meets=size >= edge, share=0.5) for size in sizes]

    found = search(trial, TARGET, start=start, width=width)
    assert edge <= found.num_blocks <= max(edge + 1, edge * (1 + 2 * RESOLUTION))
    assert found.monotone
    assert len(asked) == len(set(asked)), "no pool is tried twice"
    sizes = [each.num_blocks for each in found.tries]
    assert sizes == sorted(sizes)
    assert all(each.meets == (each.num_blocks >= edge) for each in found.tries)
    if edge > 20:
        assert sizes[0] <= edge * 0.6, "the cliff below is shown"
        assert sizes[-1] >= edge * 1.4


def test_a_pool_above_that_misses_is_told() -> None:
    def trial(sizes: Sequence[int]) -> list[PoolTry]:
        return [PoolTry(size, meets=size >= 100 and not 105 <= size <= 130, share=0.5) for size in sizes]

    found = search(trial, TARGET, start=400)
    assert not found.monotone
    assert found.num_blocks > 130
    assert all(each.meets for each in found.tries if each.num_blocks >= found.num_blocks)


def test_no_pool_meets_it() -> None:
    def trial(sizes: Sequence[int]) -> list[PoolTry]:
        return [PoolTry(size, meets=False, share=0.25, ample=size >= 64, binding="seats") for size in sizes]

    with pytest.raises(TargetOutOfReach, match=r"No pool meets the target: with 64 blocks.*25\.0%") as caught:
        search(trial, TARGET, start=1)
    assert (caught.value.share, caught.value.num_blocks) == (0.25, 64)
    assert "--max-num-seqs" in caught.value.hint


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_a_share_that_is_none(share: float) -> None:
    with pytest.raises(ConfigurationError):
        Target(Slo(), share)


def test_on_a_replay(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    target = Target(Slo(ttft=0.5), 0.9)
    settings = replace(SHORT, prefix_caching=False)
    found = find_smallest_pool(SOURCE, settings, PlainCost(), target, store, processes=1)
    (cell,) = run_matrix(
        SOURCE, [replace(settings, pool_tokens=found.num_blocks * settings.block_size)], PlainCost(), store
    )
    assert cell.kept
    assert cell.outcome is not None
    assert cell.outcome.goodput(target.slo).share >= 0.9
    below = [each for each in found.tries if each.num_blocks < found.num_blocks]
    assert below
    assert not below[-1].meets
    with pytest.raises(TargetOutOfReach, match="nothing lacks memory any more"):
        find_smallest_pool(SOURCE, settings, PlainCost(), Target(Slo(ttft=1e-6)), store, processes=1)
