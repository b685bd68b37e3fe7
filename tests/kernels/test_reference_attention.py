"""The paged reference must equal plain attention over contiguous tensors, wherever its blocks lie."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from looseleaf.kernels import reference
from looseleaf.kernels.interface import AttentionBatch
from looseleaf.kernels.reference import ReferenceKVCache


def plain_attention(query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
    """`query` holds the last positions of a contiguous sequence; one head and one query at a time."""
    num_queries, num_heads, _ = query.shape
    group = num_heads // key.shape[1]
    out = torch.empty_like(query, dtype=torch.float64)
    for j in range(num_queries):
        last = key.shape[0] - num_queries + j
        first = 0 if window is None else max(0, last - window + 1)
        for h in range(num_heads):
            k = key[first : last + 1, h // group].double()
            v = value[first : last + 1, h // group].double()
            out[j, h] = torch.softmax(k @ query[j, h].double() * scale, 0) @ v
    return out


class PagedCase:
    """Sequences scattered over a shuffled pool, beside their contiguous keys and values."""

    def __init__(
        self, seed: int, shapes: list[tuple[int, int]], block_size: int, heads: tuple[int, int], head_dim: int
    ):
        generator = torch.Generator().manual_seed(seed)
        num_heads, num_kv_heads = heads
        counts = [math.ceil(context / block_size) for context, _ in shapes]
        num_blocks = sum(counts) + 3
        order = torch.randperm(num_blocks, generator=generator).int()
        self.tables = torch.zeros(len(shapes), max(counts), dtype=torch.int32)
        taken = 0
        for row, count in enumerate(counts):
            self.tables[row, :count] = order[taken : taken + count]
            taken += count
        self.shapes = shapes
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.keys = [torch.randn(c, num_kv_heads, head_dim, generator=generator) for c, _ in shapes]
        self.values = [torch.randn(c, num_kv_heads, head_dim, generator=generator) for c, _ in shapes]
        self.queries = [torch.randn(q, num_heads, head_dim, generator=generator) for _, q in shapes]

    def slots(self, row: int) -> Tensor:
        position = torch.arange(self.shapes[row][0])
        return self.tables[row, position // self.block_size].long() * self.block_size + position % self.block_size

    def fill(self, dtype: torch.dtype, poison: float = math.nan) -> ReferenceKVCache:
        """A two-layer cache; only layer 1 holds the case, every other slot is poisoned."""
        cache = ReferenceKVCache(
            num_layers=2,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            dtype=dtype,
        )
        every = torch.arange(self.num_blocks * self.block_size)
        bad = torch.full((len(every), self.num_kv_heads, self.head_dim), poison)
        for layer in (0, 1):
            cache.write(layer, bad, bad, every)
        for row in range(len(self.shapes)):
            cache.write(1, self.keys[row], self.values[row], self.slots(row))
        return cache

    def batch(self) -> AttentionBatch:
        lengths = torch.tensor([q for _, q in self.shapes])
        starts = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).int()
        contexts = torch.tensor([c for c, _ in self.shapes], dtype=torch.int32)
        slots = torch.cat([self.slots(row)[c - q :] for row, (c, q) in enumerate(self.shapes)])
        decodes = next((i for i, (_, q) in enumerate(self.shapes) if q != 1), len(self.shapes))
        return AttentionBatch(self.tables, contexts, starts, slots, decodes)


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
        [plain_attention(q, k, v, scale, window) for q, k, v in zip(case.queries, case.keys, case.values, strict=True)]
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
            plain_attention(q, k.bfloat16(), v.bfloat16(), scale, None)
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
