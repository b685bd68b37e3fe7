"""The reference kernels: paged attention in plain torch operations, on any device and for any shape.

Every faster backend is tested against this one. It gathers blocks before it multiplies, which a real kernel
must not do; in exchange each line says what is meant.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from looseleaf.kernels import native
from looseleaf.kernels.interface import AttentionBatch

PARTITION_TOKENS = 256
"""Decode attention runs over partitions of about this many tokens, merged by log-sum-exp. The split depends on
positions alone, so a sequence's sums are formed in the same order whoever shares the batch."""


class ReferenceKVCache:
    """Keys and values as two tensors `[num_layers, num_kv_heads, num_blocks, block_size, head_dim]`.

    Head-major, so that gathered blocks are a batched-matmul operand as they are. Sums are formed in float32
    whatever the storage type.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        shape = (num_layers, num_kv_heads, num_blocks, block_size, head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        self._head_offsets = torch.arange(num_kv_heads, dtype=torch.int32, device=device)[:, None] * num_blocks
        self._blocks_per_partition = max(1, PARTITION_TOKENS // block_size)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes

    def write(self, layer: int, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """Store `key` and `value` (`[num_tokens, num_kv_heads, head_dim]`) at `slots` (int64 `[num_tokens]`)."""
        self._keys[layer].flatten(1, 2).index_copy_(1, slots, key.to(self.dtype).transpose(0, 1))
        self._values[layer].flatten(1, 2).index_copy_(1, slots, value.to(self.dtype).transpose(0, 1))

    def copy_blocks(self, source: Tensor, destination: Tensor) -> None:
        """Copy whole blocks in every layer and head, pair after pair (int32 block ids)."""
        for cache in (self._keys, self._values):
            native.copy_blocks(cache.flatten(0, 1), source, destination)

    def attend(
        self, layer: int, query: Tensor, batch: AttentionBatch, *, scale: float, sliding_window: int | None = None
    ) -> Tensor:
        """Attention of `query` (`[num_tokens, num_heads, head_dim]`) over the paged keys and values."""
        output = torch.empty_like(query)
        decodes = batch.num_decodes
        if decodes:
            output[:decodes] = self._attend_decodes(layer, query[:decodes], batch, scale, sliding_window)
        starts = batch.query_starts.tolist()
        context_lens = batch.context_lens.tolist()
        for i in range(decodes, len(context_lens)):
            rows = slice(starts[i], starts[i + 1])
            output[rows] = self._attend_chunk(
                layer, query[rows], batch.block_tables[i], context_lens[i], scale, sliding_window
            )
        return output

    def _gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Float32 copies of the given blocks, `[num_kv_heads, *blocks.shape, block_size, head_dim]`."""
        shape = (self.num_kv_heads, *blocks.shape, self.block_size, self.head_dim)
        # Heads and blocks as one leading axis: torch selects along the first axis at the speed of a copy.
        index = (self._head_offsets + blocks.flatten()).flatten()
        return (
            self._keys[layer].flatten(0, 1).index_select(0, index).float().view(shape),
            self._values[layer].flatten(0, 1).index_select(0, index).float().view(shape),
        )

    def _attend_decodes(
        self, layer: int, query: Tensor, batch: AttentionBatch, scale: float, sliding_window: int | None
    ) -> Tensor:
        """One query row per sequence, all sequences together, a partition of their blocks at a time."""
        num_seqs, num_heads, head_dim = query.shape
        group = num_heads // self.num_kv_heads
        # [kv_heads, seqs, group, head_dim]: the query heads that share a key head stand together.
        q = query.float().view(num_seqs, self.num_kv_heads, group, head_dim).permute(1, 0, 2, 3) * scale
        lens = batch.context_lens[:num_seqs]
        first = torch.zeros_like(lens) if sliding_window is None else (lens - sliding_window).clamp_(min=0)

        stat = q.new_zeros(self.num_kv_heads, num_seqs, group, 1)
        highest, total, weighted = stat - math.inf, stat, torch.zeros_like(q)
        width = self._blocks_per_partition
        for begin in range(0, math.ceil(int(lens.max()) / self.block_size), width):
            start = begin * self.block_size
            live = torch.nonzero((lens > start) & (first < start + width * self.block_size)).flatten()
            blocks = batch.block_tables[live, begin : begin + width]
            key, value = self._gather(layer, blocks)
            key, value = key.flatten(2, 3), value.flatten(2, 3)
            position = torch.arange(start, start + key.shape[2])
            unseen = (position >= lens[live, None]) | (position < first[live, None])
            # A slot that is not the sequence's may hold anything, NaN too, and 0 × NaN is NaN.
            value.masked_fill_(unseen[None, :, :, None], 0.0)

            score = q[:, live] @ key.transpose(-1, -2)
            score.masked_fill_(unseen[None, :, None, :], -math.inf)
            new_highest = torch.maximum(highest[:, live], score.amax(-1, keepdim=True))
            weight = torch.exp(score - new_highest)
            rescale = torch.exp(highest[:, live] - new_highest)
            weighted[:, live] = weighted[:, live] * rescale + weight @ value
            total[:, live] = total[:, live] * rescale + weight.sum(-1, keepdim=True)
            highest[:, live] = new_highest
        output = (weighted / total).permute(1, 0, 2, 3).reshape(num_seqs, num_heads, head_dim)
        return output.to(query.dtype)

    def _attend_chunk(
        self, layer: int, query: Tensor, table: Tensor, context_len: int, scale: float, sliding_window: int | None
    ) -> Tensor:
        """A chunk of queries of one sequence: the last `len(query)` positions of `context_len`, causal."""
        num_queries, num_heads, head_dim = query.shape
        group = num_heads // self.num_kv_heads
        key, value = self._gather(layer, table[: math.ceil(context_len / self.block_size)])
        key = key.flatten(1, 2)[:, :context_len].unsqueeze(1).expand(-1, group, -1, -1)
        value = value.flatten(1, 2)[:, :context_len].unsqueeze(1).expand(-1, group, -1, -1)
        q = query.float().view(num_queries, self.num_kv_heads, group, head_dim).permute(1, 2, 0, 3)

        position = torch.arange(context_len)
        query_position = position[context_len - num_queries :, None]
        seen = position <= query_position
        if sliding_window is not None:
            seen &= position > query_position - sliding_window
        output = F.scaled_dot_product_attention(q, key, value, attn_mask=seen, scale=scale)
        return output.permute(2, 0, 1, 3).reshape(num_queries, num_heads, head_dim).to(query.dtype)
