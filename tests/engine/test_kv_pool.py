"""The pool's size, by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.engine.config import EngineConfig, format_bytes, parse_memory
from looseleaf.engine.kv_pool import size_pool
from looseleaf.errors import ConfigurationError
from tiny_model import tiny_model

GIB = 2**30


def _config(**settings: Any) -> EngineConfig:
    return EngineConfig.parse({"dtype": "float32"} | settings)


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
    pool = size_pool(model, _config(kv_cache_memory="1MiB", max_model_len=100), available=GIB)
    assert pool.bytes_per_token == model.kv_bytes_per_token(torch.float32) == 256
    assert (pool.num_blocks, pool.num_tokens, pool.nbytes) == (256, 4096, 2**20)
    assert pool.longest_at_once == 36  # 7 blocks of 16 hold 100 tokens, and 256 // 7 = 36
    assert "256 blocks × 16 tokens = 4,096 tokens in 1.0 MiB; 256 bytes per token" in str(pool)
    assert "2 × 2 layers × 2 KV heads × 8 × 4 bytes" in str(pool)
    assert size_pool(model, _config(dtype="bfloat16", kv_cache_memory="1MiB"), available=GIB).num_tokens == 8192


def test_a_share_is_not_taken_beyond_what_can_be_used() -> None:
    model = tiny_model().config
    config = _config(kv_cache_memory="50%", max_num_seqs=3, max_model_len=100, block_size=16)
    assert size_pool(model, config, available=GIB).num_blocks == 3 * 7
    config = _config(kv_cache_memory=GIB // 2, max_num_seqs=3, max_model_len=100, block_size=16)
    assert size_pool(model, config, available=GIB).num_blocks == GIB // 2 // 256 // 16


def test_without_a_maximum_the_pool_or_the_model_sets_it() -> None:
    model = tiny_model().config
    small = size_pool(model, _config(kv_cache_memory=256 * 50), available=GIB)
    assert (small.num_blocks, small.max_model_len) == (3, 48)
    large = size_pool(model, _config(kv_cache_memory="1MiB"), available=GIB)
    assert large.max_model_len == model.max_position_embeddings == 512


def test_scales_count_and_int8_holds_about_twice_the_sequences_of_bfloat16() -> None:
    model = tiny_model(head_dim=64, num_heads=3, num_kv_heads=3, hidden_size=192).config
    pools = {
        name: size_pool(model, _config(kv_cache_dtype=name, kv_cache_memory="4MiB", max_model_len=256), available=GIB)
        for name in ("float32", "bfloat16", "int8")
    }
    # 2 (K and V) × 2 layers × 3 heads × (64 numbers, in int8 with a 2-byte scale beside them)
    assert {name: pool.bytes_per_token for name, pool in pools.items()} == {
        "float32": 3072,
        "bfloat16": 1536,
        "int8": 792,
    }
    assert {name: pool.num_blocks for name, pool in pools.items()} == {"float32": 85, "bfloat16": 170, "int8": 330}
    assert {name: pool.longest_at_once for name, pool in pools.items()} == {"float32": 5, "bfloat16": 10, "int8": 20}
    assert all(pool.nbytes <= 4 * 2**20 for pool in pools.values())
    assert "792 bytes per token (2 × 2 layers × 3 KV heads × (64 + a scale of 2) bytes)" in str(pools["int8"])


@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype", "expected"),
    [
        ("float32", "auto", torch.float32),
        ("bfloat16", "auto", torch.bfloat16),
        ("float32", "bfloat16", torch.bfloat16),
        ("bfloat16", "int8", torch.int8),
    ],
)
def test_the_kv_cache_has_the_models_dtype_unless_told_otherwise(
    dtype: str, kv_cache_dtype: str, expected: torch.dtype
) -> None:
    assert EngineConfig(dtype=dtype, kv_cache_dtype=kv_cache_dtype).torch_kv_dtype == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"kv_cache_dtype": "int4"}, "kv_cache_dtype 'int4'"), ({"quantization": "awq"}, "quantization 'awq'")],
)
def test_settings_that_do_not_exist(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EngineConfig.parse(settings)
