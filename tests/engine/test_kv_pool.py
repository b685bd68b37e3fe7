"""The pool's size, by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.engine.config import EngineConfig, format_bytes, parse_memory
from looseleaf.engine.kv_pool import size_pool
from tiny_model import tiny_model

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GiB", 2 * GIB),
        ("2 gib", 2 * GIB),
        ("1.5G", 1_500_000_000),
        ("800MB", 800_000_000),
        ("64k", 64_000),
        ("123", 123),
        (456, 456),
        ("25%", 250),
        ("100 %", 1000),
    ],
)
def test_memory_sizes(text: int | str, expected: int) -> None:
    assert parse_memory(text, available=1000) == expected


@given(st.integers(0, 2**60))
def test_formatted_bytes_are_within_their_rounding(size: int) -> None:
    number, unit = format_bytes(size).replace(",", "").split()
    scale = 1 if unit == "bytes" else 2 ** (10 * (1 + "KMGT".index(unit[0])))
    assert abs(float(number) * scale - size) <= 0.051 * scale


def test_blocks_tokens_and_requests_of_a_known_budget() -> None:
    model = tiny_model().config  # 2 (K and V) × 2 layers × 2 heads × 8 × 4 bytes = 256 bytes per token
    pool = size_pool(model, EngineConfig(kv_cache_memory="1MiB", max_model_len=100), torch.float32, available=GIB)
    assert pool.bytes_per_token == model.kv_bytes_per_token(torch.float32) == 256
    assert (pool.num_blocks, pool.num_tokens, pool.nbytes) == (256, 4096, 2**20)
    assert pool.longest_at_once == 36  # 7 blocks of 16 hold 100 tokens, and 256 // 7 = 36
    assert "256 blocks × 16 tokens = 4,096 tokens in 1.0 MiB; 256 bytes per token" in str(pool)
    assert "2 × 2 layers × 2 KV heads × 8 × 4 bytes" in str(pool)
    assert size_pool(model, EngineConfig(kv_cache_memory="1MiB"), torch.bfloat16, available=GIB).num_tokens == 8192


def test_a_share_is_not_taken_beyond_what_can_be_used() -> None:
    model = tiny_model().config
    config = EngineConfig(kv_cache_memory="50%", max_num_seqs=3, max_model_len=100, block_size=16)
    assert size_pool(model, config, torch.float32, available=GIB).num_blocks == 3 * 7
    config = EngineConfig(kv_cache_memory=GIB // 2, max_num_seqs=3, max_model_len=100, block_size=16)
    assert size_pool(model, config, torch.float32, available=GIB).num_blocks == GIB // 2 // 256 // 16


def test_without_a_maximum_the_pool_or_the_model_sets_it() -> None:
    model = tiny_model().config
    small = size_pool(model, EngineConfig(kv_cache_memory=256 * 50), torch.float32, available=GIB)
    assert (small.num_blocks, small.max_model_len) == (3, 48)
    large = size_pool(model, EngineConfig(kv_cache_memory="1MiB"), torch.float32, available=GIB)
    assert large.max_model_len == model.max_position_embeddings == 512
