"""Blocks of a request, windows and states among them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.plan.arithmetic import ModelArithmetic
from looseleaf.plan.errors import InvalidPlan
from looseleaf.plan.known_models import find_model
from looseleaf.plan.kv_layout import KVLayout, most_shareable
from looseleaf.plan.shape import ModelShape

Published = Callable[[str], ModelShape]


def test_starcoder2_holds_windows_of_a_step() -> None:
    layout = KVLayout(ModelArithmetic(find_model("starcoder2-3b")), step_tokens=8192)
    # 4,095 tokens back from each of 8,192: 12,287 tokens, 768 blocks, and one for where the window begins.
    assert layout.blocks(layout.groups[0], 16_384) == 769
    assert round(137_407 * layout.block_bytes / layout.request_bytes(16_384), 2) == 178.68


def test_layers_may_keep_their_windows() -> None:
    arithmetic = ModelArithmetic(find_model("starcoder2-3b"))
    kept = KVLayout(arithmetic, keep_windows=True)
    assert kept.uniform
    assert kept.request_bytes(16_384) == 16_384 * 30_720


def test_chunks_hold_one_chunk_and_a_step(published: Published) -> None:
    layout = KVLayout(ModelArithmetic(published("meta-llama--Llama-4-Scout-17B-16E-Instruct")), step_tokens=2048)
    chunked = next(group for group in layout.groups if group.kind == "chunk")
    assert layout.blocks(chunked, 1_000_000) == (8192 + 2048) // 16
    assert chunked.layers == 36


def test_states_do_not_grow(published: Published) -> None:
    layout = KVLayout(ModelArithmetic(published("Qwen--Qwen3.5-27B")))
    assert layout.request_bytes(1) == layout.state_bytes + 16 * layout.slope
    assert layout.request_bytes(32) - layout.request_bytes(16) == 16 * layout.slope
    assert layout.fixed_bytes(100_000) == layout.state_bytes


def test_the_shareable_unit_follows_from_the_state(published: Published) -> None:
    def unit(name: str, ranks: int = 1) -> int:
        return KVLayout(ModelArithmetic(published(name), tensor_parallel=ranks)).shareable_unit

    assert unit("meta-llama--Meta-Llama-3.1-8B") == 16
    assert unit("openai--gpt-oss-20b") == 16
    # 3,207,168 bytes of state, 4,096 bytes of a token: 783 tokens, in whole blocks of 16.
    assert unit("Qwen--Qwen3.5-27B") == 784
    assert unit("Qwen--Qwen3.5-35B-A3B") == 1056
    # On four devices half as much state, and the two key-value heads become one on each.
    assert unit("Qwen--Qwen3.5-35B-A3B", 4) == 528


def test_what_of_a_prompt_can_be_shared() -> None:
    assert most_shareable(552, 528) == 528
    assert most_shareable(552, 528) / 552 == pytest.approx(0.957, abs=0.0005)
    assert most_shareable(528, 528) == 0  # its last token is always computed
    assert most_shareable(527, 528) == most_shareable(1, 16) == 0
    assert most_shareable(33, 16) == 32


@pytest.mark.parametrize(
    ("dtype", "per_head_and_token"),
    [("bfloat16", 128 * 2), ("float32", 128 * 4), ("fp8", 128), ("int8", 128 + 2), ("int8_per_token_head", 128 + 4)],
)
def test_kv_dtypes_and_their_scales(dtype: str, per_head_and_token: int) -> None:
    arithmetic = ModelArithmetic(find_model("llama-3.1-8b"), kv_cache_dtype=dtype)
    assert KVLayout(arithmetic).bytes_per_token == 32 * 2 * 8 * per_head_and_token


def test_looseleafs_own_block_takes_as_much() -> None:
    torch = pytest.importorskip("torch")
    from looseleaf.kernels.layout import block_bytes

    shape = find_model("smollm2-135m")
    for name, dtype in {"int8": torch.int8, "bfloat16": torch.bfloat16, "float32": torch.float32}.items():
        layout = KVLayout(ModelArithmetic(shape, kv_cache_dtype=name))
        assert layout.block_bytes == 30 * block_bytes(dtype, 16, 3, 64)


def test_latents_in_eight_bits() -> None:
    shape = find_model("deepseek-v3")
    assert KVLayout(ModelArithmetic(shape, kv_cache_dtype="fp8")).slope == 61 * 576
    assert KVLayout(ModelArithmetic(shape, kv_cache_dtype="fp8_ds_mla")).slope == 61 * 656
    with pytest.raises(InvalidPlan, match="latent"):
        ModelArithmetic(find_model("llama-3.1-8b"), kv_cache_dtype="fp8_ds_mla")


MIXED = [
    ModelArithmetic(find_model(name))
    for name in ("llama-3.1-8b", "gpt-oss-20b", "starcoder2-3b", "gemma-3-27b-it", "deepseek-v3")
]


@given(
    arithmetic=st.sampled_from(MIXED),
    block_size=st.sampled_from([1, 8, 16, 100, 256]),
    step_tokens=st.integers(1, 5000),
    length=st.integers(1, 200_000),
)
def test_a_request_grows_monotonically_and_never_beyond_all_tokens(
    arithmetic: ModelArithmetic, block_size: int, step_tokens: int, length: int
) -> None:
    layout = KVLayout(arithmetic, block_size=block_size, step_tokens=step_tokens)
    nbytes = layout.request_bytes(length)
    whole = -(-length // block_size) * block_size
    assert arithmetic.kv_bytes(length) <= nbytes <= whole * layout.bytes_per_token
    assert nbytes <= layout.request_bytes(length + 1)
    assert layout.longest(nbytes, 10**6) >= length
    assert layout.longest(layout.request_bytes(length) - 1, 10**6) < whole
