"""How much of the memory holds tokens: known shares, from real lengths and from a set-up that is easily reckoned."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from looseleaf.memory import make_manager
from looseleaf.replay.matrix import run_matrix
from looseleaf.replay.settings import Settings
from looseleaf.replay.sources import TraceSource
from looseleaf.replay.store import ResultStore
from looseleaf.replay.trace import read_trace
from small_sweep import PlainCost

TRACES = Path(os.environ.get("LOOSELEAF_SHARED", Path(__file__).parents[3] / "shared")) / "traces"


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_half_a_block_is_wasted_by_each_request(tmp_path: Path, block_size: int) -> None:
    """Whatever the lengths, the last block is on average half empty: (block_size − 1) / 2 slots."""
    source = TraceSource("n=300,prompt=uniform:100-400,output=uniform:100-400,seed=3")
    settings = Settings(
        1 << 20, 1024, block_size=block_size, prefix_caching=False, max_num_seqs=300, max_num_batched_tokens=1 << 20
    )
    (cell,) = run_matrix(source, [settings], PlainCost(), ResultStore(tmp_path), processes=1)
    assert cell.outcome is not None
    totals = cell.outcome.totals
    wasted = totals["slot_shares"]["internal_fragmentation"] * (1 << 20) / totals["mean_running"]
    assert wasted == pytest.approx((block_size - 1) / 2, rel=0.05, abs=0.01)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
@pytest.mark.parametrize(
    ("file", "share", "within"),
    [("azure2023_conv_full.jsonl.gz", 0.994, 0.0005), ("lmsys_arena_vtc_full.jsonl.gz", 0.975, 0.006)],
)
def test_slots_with_tokens_on_real_lengths(file: str, share: float, within: float) -> None:
    """In blocks of 16, averaged over the time in which each request decodes."""
    memory = make_manager("paged", 4096, 16, 1)
    block_slots = 16 * np.array([memory.blocks_for(tokens) for tokens in range(1, 16_000)])
    held = tokens = 0
    for request in read_trace(TRACES / file).requests():
        lengths = request.prompt_tokens + np.arange(request.output_tokens)
        held += int(block_slots[lengths - 1].sum())
        tokens += int(lengths.sum())
    assert tokens / held == pytest.approx(share, abs=within)


@pytest.mark.parametrize(("allocator", "share"), [("contiguous-max", 0.26), ("paged", 0.52)])
def test_the_classroom(tmp_path: Path, allocator: str, share: float) -> None:
    """Lengths uniform from 16 to 1,048, 2,048 reserved for each, a pool of 65,536, at most 64 at once."""
    source = TraceSource("n=4000,prompt=uniform:15-1047,output=1,seed=11")
    settings = Settings(65536, 2048, allocator, prefix_caching=False, watermark=0, max_num_seqs=64)
    settings = replace(settings, max_num_batched_tokens=65536)
    (cell,) = run_matrix(source, [settings], PlainCost(), ResultStore(tmp_path), processes=1)
    assert cell.outcome is not None
    assert cell.outcome.totals["slot_shares"]["token_states"] == pytest.approx(share, abs=0.01)
