"""Work and bytes of a step, against sums written out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.plan.arithmetic import ContextTerm, ModelArithmetic, attended_pairs
from looseleaf.plan.errors import InvalidPlan
from looseleaf.plan.known_models import find_model
from looseleaf.plan.weights import weight_formats

LLAMA = ModelArithmetic(find_model("llama-3.1-8b"))


@given(context=st.integers(1, 300), share=st.floats(0, 1), limit=st.none() | st.integers(1, 100), chunked=st.booleans())
def test_pairs_are_those_that_a_mask_leaves(context: int, share: float, limit: int | None, chunked: bool) -> None:
    queries = max(1, int(share * context))

    def sees(position: int) -> int:
        if limit is None:
            return position + 1
        return position % limit + 1 if chunked else min(position + 1, limit)

    term = ContextTerm(limit, 1, 1, 1, 1, chunked)
    assert attended_pairs(term, queries, context) == sum(sees(p) for p in range(context - queries, context))


def test_llama_by_hand() -> None:
    # Per layer: queries and output 4096 × 4096, keys and values 4096 × 1024, three matrices of 4096 × 14336.
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    assert LLAMA.flops_per_token == 2 * 32 * layer
    assert LLAMA.flops_per_sample == 2 * 4096 * 128_256
    # Each of 32 heads multiplies 128 numbers twice: with the key, and with the value.
    assert LLAMA.attention_flops(1, 1000) == 32 * 1000 * 2 * 2 * 32 * 128
    assert LLAMA.attention_flops(3, 3) == 32 * 6 * 2 * 2 * 32 * 128
    assert LLAMA.kv_bytes(1000) == LLAMA.kv_bytes_read(1000) == 131_072_000
    assert LLAMA.weight_bytes == 2 * 8_030_261_248


def test_a_chunked_prompt_attends_to_as_much_as_a_whole_one() -> None:
    for name in ("llama-3.1-8b", "gpt-oss-20b", "gemma-3-27b-it"):
        arithmetic = ModelArithmetic(find_model(name))
        chunks = sum(arithmetic.attention_flops(100, end) for end in range(100, 2001, 100))
        assert chunks == arithmetic.attention_flops(2000, 2000)


def test_windows_bound_what_is_read() -> None:
    oss = ModelArithmetic(find_model("gpt-oss-20b"))
    assert oss.kv_bytes_read(100) == 100 * 49_152
    assert oss.kv_bytes_read(10_000) == 10_000 * 24_576 + 128 * 24_576


def test_experts_are_read_as_tokens_reach_them() -> None:
    mixtral = ModelArithmetic(find_model("mixtral-8x7b-v0.1"))
    experts = mixtral.weight_bytes_by_part["experts"]
    rest = mixtral.weight_bytes - experts - mixtral.weight_bytes_by_part["embedding"]
    row = 2 * 4096
    assert mixtral.weight_bytes_read(1) == pytest.approx(rest + row + experts * 2 / 8)
    assert mixtral.weight_bytes_read(2) == pytest.approx(rest + 2 * row + experts * (1 - 0.75**2))
    assert mixtral.weight_bytes_read(10**6) == pytest.approx(mixtral.weight_bytes)


def test_a_tied_head_is_read_whole() -> None:
    assert ModelArithmetic(find_model("smollm2-135m")).weight_bytes_read(1) == 2 * 134_515_008


def test_ranks_share_the_weights() -> None:
    whole = LLAMA.weight_bytes
    each = ModelArithmetic(find_model("llama-3.1-8b"), tensor_parallel=4).weight_bytes
    assert whole / 4 <= each <= whole / 4 * 1.001  # norms are on every rank
    with pytest.raises(InvalidPlan, match="32 attention heads"):
        ModelArithmetic(find_model("llama-3.1-8b"), tensor_parallel=3)
    with pytest.raises(InvalidPlan, match="at least 1"):
        ModelArithmetic(find_model("llama-3.1-8b"), tensor_parallel=0)


def test_formats_of_weights() -> None:
    shape = find_model("gpt-oss-20b")
    assert weight_formats(shape)["experts"] == "mxfp4"
    assert set(weight_formats(shape, quantization="none").values()) == {"bfloat16"}
    assert set(weight_formats(shape, dtype="float32").values()) == {"float32"}
    assert weight_formats(shape, quantization="q8_0")["mlp"] == "q8_0"
    for wrong in ({"dtype": "int7"}, {"quantization": "int7"}):
        with pytest.raises(InvalidPlan, match="Known"):
            weight_formats(shape, **wrong)
    with pytest.raises(InvalidPlan, match="Known"):
        ModelArithmetic(shape, kv_cache_dtype="int7")
