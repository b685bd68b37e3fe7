"""A sweep says where it cannot show a difference, and what to change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from looseleaf.replay.blind_spots import blind_spots
from looseleaf.replay.matrix import run_matrix
from looseleaf.replay.settings import Settings, combinations
from looseleaf.replay.sources import TraceSource
from looseleaf.replay.store import ResultStore
from small_sweep import AMPLE, SHARING, SHORT, SOURCE, PlainCost


def notes(
    folder: Path, source: TraceSource, base: Settings, varied: dict[str, list[Any]], *, shares: bool
) -> list[str]:
    cells = run_matrix(source, combinations(base, varied), PlainCost(), ResultStore(folder), processes=1)
    assert all(cell.outcome is not None for cell in cells)
    return blind_spots(cells, shares=shares)


def test_block_sizes_while_seats_bind(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, SOURCE, replace(AMPLE, max_num_seqs=2), {"block_size": [1, 16]}, shares=False)
    assert note.startswith("block size: no request had to wait for blocks")
    assert "Seats (max_num_seqs) bound instead" in note
    assert "raise --max-num-seqs" in note


def test_block_sizes_while_blocks_bind(tmp_path: Path) -> None:
    assert notes(tmp_path, SOURCE, SHORT, {"block_size": [1, 16]}, shares=False) == []


def test_nobody_waits(tmp_path: Path) -> None:
    found = notes(tmp_path, SOURCE, AMPLE, {"block_size": [1, 16], "max_num_seqs": [64, 65]}, shares=False)
    assert [note.split(":")[0] for note in found] == ["block size", "most sequences"]
    assert all("Requests came no faster than they were served" in note for note in found)


def test_one_of_two_comparisons(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, SOURCE, SHORT, {"block_size": [1, 16], "pool_tokens": [512, 16384]}, shares=False)[:1]
    assert note.startswith("block size in 1 of 2 comparisons:")


@pytest.mark.parametrize(
    ("source", "shares", "says"),
    [
        (SOURCE, False, "does not say which prompts begin alike"),
        (TraceSource("n=1,prompt=64,output=4,system=32"), True, "no prompt began like one that was still there"),
        (SHARING, True, None),
    ],
)
def test_the_prefix_cache(tmp_path: Path, source: TraceSource, shares: bool, says: str | None) -> None:
    found = notes(tmp_path, source, AMPLE, {"prefix_caching": [True, False]}, shares=shares)
    if says is None:
        assert found == []
    else:
        assert says in found[0]
        assert len(found) == 1


def test_contiguous_memory_has_no_watermark_to_judge(tmp_path: Path) -> None:
    varied = {"allocator": ["paged", "contiguous-oracle"], "watermark": [0.0, 0.3]}
    assert not [note for note in notes(tmp_path, SOURCE, SHORT, varied, shares=False) if "contiguous" in note]


def test_policies_that_have_nothing_to_tell_apart(tmp_path: Path) -> None:
    varied = {"scheduling_policy": ["fcfs", "priority"]}
    (note,) = notes(tmp_path, SOURCE, SHORT, varied, shares=False)
    assert note.startswith("policy: every request got the same under each")
    tenants = TraceSource("n=40,arrivals=poisson:60,prompt=uniform:20-60,output=uniform:10-40,tenants=a:9|b:1,seed=5")
    assert notes(tmp_path, tenants, SHORT, {"scheduling_policy": ["fcfs", "fair"]}, shares=False) == []
