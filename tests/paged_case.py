"""Sequences in a paged cache, beside their contiguous keys and values; and attention in the plainest form."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from looseleaf.kernels.interface import AttentionBatch, KVCache
from looseleaf.kernels.reference import ReferenceKVCache


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    """`query` holds the last positions of a contiguous sequence; one head and one query at a time, in float64.

    Returns the attention and each row's log-sum-exp.
    """
    num_queries, num_heads, _ = query.shape
    group = num_heads // key.shape[1]
    out = torch.empty_like(query, dtype=torch.float64)
    lse = torch.empty(num_queries, num_heads, dtype=torch.float64)
    for j in range(num_queries):
        last = key.shape[0] - num_queries + j
        first = 0 if window is None else max(0, last - window + 1)
        for h in range(num_heads):
            k = key[first : last + 1, h // group].double()
            v = value[first : last + 1, h // group].double()
            score = k @ query[j, h].double() * scale
            if softcap is not None:
                score = softcap * torch.tanh(score / softcap)
            out[j, h] = torch.softmax(score, 0) @ v
            lse[j, h] = torch.logsumexp(score, 0)
    return out, lse


class PagedCase:
    """Sequences of (context, queries) tokens, scattered over a shuffled pool."""

    def __init__(
        self,
        seed: int,
        shapes: list[tuple[int, int]],
        block_size: int,
        heads: tuple[int, int],
        head_dim: int,
        *,
        shuffle_seed: int | None = None,
    ):
        """`shuffle_seed` moves the blocks elsewhere, and leaves keys, values and queries as `seed` makes them."""
        generator = torch.Generator().manual_seed(seed)
        num_heads, num_kv_heads = heads
        self.keys = [torch.randn(c, num_kv_heads, head_dim, generator=generator) for c, _ in shapes]
        self.values = [torch.randn(c, num_kv_heads, head_dim, generator=generator) for c, _ in shapes]
        self.queries = [torch.randn(q, num_heads, head_dim, generator=generator) for _, q in shapes]
        counts = [math.ceil(context / block_size) for context, _ in shapes]
        num_blocks = sum(counts) + 3
        if shuffle_seed is not None:
            generator = torch.Generator().manual_seed(shuffle_seed)
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

    def slots(self, row: int) -> Tensor:
        position = torch.arange(self.shapes[row][0])
        return self.tables[row, position // self.block_size].long() * self.block_size + position % self.block_size

    def fill(
        self, dtype: torch.dtype, poison: float = math.nan, kind: Callable[..., KVCache] = ReferenceKVCache
    ) -> KVCache:
        """A two-layer cache; only layer 1 holds the case, every other slot is poisoned."""
        cache = kind(
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
