"""The paged reference must equal plain attention over contiguous tensors, wherever its blocks lie."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.kernels import reference
from looseleaf.kernels.interface import AttentionBatch
from looseleaf.kernels.reference import quantise
from looseleaf.kernels.rotation import rotate, rotated_together
from paged_case import PagedCase, plain_attention


@st.composite
def cases(draw: st.DrawFn) -> PagedCase:
    block_size = draw(st.integers(1, 64))
    longest = draw(st.sampled_from([3, 40, 300, 700]))
    decodes = draw(st.lists(st.integers(1, longest), max_size=5))
    chunks = draw(st.lists(st.tuples(st.integers(1, longest), st.integers(1, 24)), max_size=3))
    shapes = [(c, 1) for c in decodes] + [(max(c, q), q) for c, q in chunks]
    num_kv_heads = draw(st.sampled_from([1, 2, 3]))
    heads = (num_kv_heads * draw(st.sampled_from([1, 2, 3, 4])), num_kv_heads)
    return PagedCase(
        draw(st.integers(0, 2**32)), shapes or [(1, 1)], block_size, heads, draw(st.sampled_from([1, 8, 33]))
    )


@given(case=cases(), window=st.none() | st.integers(1, 400), at_once=st.sampled_from([1, 3, 16]))
@settings(max_examples=120, deadline=None)
def test_equals_plain_attention_in_float32(case: PagedCase, window: int | None, at_once: int) -> None:
    scale = 1 / math.sqrt(case.head_dim)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "PARTITIONS_AT_ONCE", at_once)
        cache = case.fill(torch.float32)
        got = cache.attend(1, torch.cat(case.queries), case.batch(), scale=scale, sliding_window=window)
    expected = torch.cat(
        [
            plain_attention(q, k, v, scale, window)[0]
            for q, k, v in zip(case.queries, case.keys, case.values, strict=True)
        ]
    )
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)


@given(case=cases())
@settings(max_examples=40, deadline=None)
def test_bfloat16_adds_only_the_rounding_of_what_is_stored(case: PagedCase) -> None:
    scale = 1 / math.sqrt(case.head_dim)
    queries = [q.bfloat16() for q in case.queries]
    got = case.fill(torch.bfloat16).attend(1, torch.cat(queries), case.batch(), scale=scale)
    expected = torch.cat(
        [
            plain_attention(q, k.bfloat16(), v.bfloat16(), scale, None)[0]
            for q, k, v in zip(queries, case.keys, case.values, strict=True)
        ]
    )
    assert got.dtype == torch.bfloat16
    # Sums are float32; the one rounding left is that of the result to 8 bits.
    torch.testing.assert_close(got.double(), expected, atol=1e-4, rtol=2**-8)


def test_infinities_of_one_sequence_stay_its_own() -> None:
    case = PagedCase(7, [(20, 1), (33, 1), (50, 12)], 16, (4, 2), 8)
    batch = case.batch()
    queries = torch.cat(case.queries)
    clean = case.fill(torch.float32).attend(1, queries, batch, scale=0.5)
    case.values[1].fill_(math.inf)
    case.keys[1].fill_(math.nan)
    dirty = case.fill(torch.float32).attend(1, queries, batch, scale=0.5)
    assert not dirty[1].isfinite().any()
    keep = torch.arange(len(queries)) != 1
    assert torch.equal(dirty[keep], clean[keep])


@given(order=st.permutations(range(5)), companions=st.integers(0, 4))
@settings(max_examples=30, deadline=None)
def test_a_decode_does_not_depend_on_its_company(order: list[int], companions: int) -> None:
    # 22 partitions of 256 tokens: more than are read at once.
    case = PagedCase(3, [(5, 1), (2_000, 1), (256, 1), (257, 1), (2_300, 1)], 16, (6, 3), 16)
    cache, batch = case.fill(torch.float32), case.batch()
    queries = torch.cat(case.queries)
    every = cache.attend(1, queries, batch, scale=0.25)
    chosen = torch.tensor(order[: companions + 1])
    count = len(chosen)
    subset = AttentionBatch(
        batch.block_tables[chosen],
        batch.context_lens[chosen],
        torch.arange(count + 1, dtype=torch.int32),
        batch.slots[chosen],
        count,
    )
    assert torch.equal(cache.attend(1, queries[chosen], subset, scale=0.25), every[chosen])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copied_blocks_read_the_same_and_the_rest_is_untouched(dtype: torch.dtype) -> None:
    case = PagedCase(11, [(30, 1)], 16, (2, 1), 8)
    cache = case.fill(dtype, poison=3.0)
    used = case.tables[0].tolist()
    spare = sorted(set(range(case.num_blocks)) - set(used))
    before = cache.attend(1, case.queries[0], case.batch(), scale=1.0)
    cache.copy_blocks(torch.tensor(used, dtype=torch.int32), torch.tensor(spare[:2], dtype=torch.int32))
    case.tables[0, :2] = torch.tensor(spare[:2])
    moved = cache.attend(1, case.queries[0], case.batch(), scale=1.0)
    assert torch.equal(moved, before)
    case.tables[0, :2] = torch.tensor(used)
    assert torch.equal(cache.attend(1, case.queries[0], case.batch(), scale=1.0), before)


@given(case=cases(), window=st.none() | st.integers(1, 400), softcap=st.none() | st.floats(0.5, 50.0))
@settings(max_examples=60, deadline=None)
def test_soft_cap_and_log_sum_exp(case: PagedCase, window: int | None, softcap: float | None) -> None:
    scale = 2 / math.sqrt(case.head_dim)
    queries = torch.cat(case.queries)
    lse = torch.empty(queries.shape[:2])
    got = case.fill(torch.float32).attend(
        1, queries, case.batch(), scale=scale, sliding_window=window, softcap=softcap, lse=lse
    )
    expected = [
        plain_attention(q, k, v, scale, window, softcap)
        for q, k, v in zip(case.queries, case.keys, case.values, strict=True)
    ]
    torch.testing.assert_close(got.double(), torch.cat([out for out, _ in expected]), atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(lse.double(), torch.cat([logs for _, logs in expected]), atol=2e-5, rtol=2e-5)


def dequantised(rows: torch.Tensor) -> torch.Tensor:
    numbers, scales = quantise(rows)
    return numbers.float() * scales.float()


def rotated_back(rows: torch.Tensor) -> torch.Tensor:
    return rotate(rows) / rotated_together(rows.shape[-1])


@given(case=cases())
@settings(max_examples=40, deadline=None)
def test_int8_is_plain_attention_over_the_dequantised(case: PagedCase) -> None:
    scale = 1 / math.sqrt(case.head_dim)
    got = case.fill(torch.int8).attend(1, torch.cat(case.queries), case.batch(), scale=scale)
    expected = torch.cat(
        [
            plain_attention(q, rotated_back(dequantised(rotate(k))), dequantised(v), scale, None)[0]
            for q, k, v in zip(case.queries, case.keys, case.values, strict=True)
        ]
    )
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)


@given(scale=st.floats(1e-30, 1e30), seed=st.integers(0, 2**32))
def test_an_int8_row_is_off_by_half_a_step_at_most(scale: float, seed: int) -> None:
    rows = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(seed)) * scale
    numbers, steps = quantise(rows)
    assert numbers.abs().max() <= 127
    assert (steps.float() <= rows.abs().amax(-1, keepdim=True) / 127 * (1 + 2**-6)).all()
    assert ((dequantised(rows) - rows).abs() <= steps.float() * 0.5001).all()


def test_an_int8_row_that_is_not_finite_stays_so() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        assert dequantised(torch.tensor([[1.0, bad, 3.0]])).isnan().all()
    assert (dequantised(torch.zeros(2, 4)) == 0).all()
