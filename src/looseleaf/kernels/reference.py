"""The reference kernels: paged attention in plain torch operations, on the CPU, for any shape.

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
from looseleaf.kernels.rotation import rotate, rotated_together

PARTITION_TOKENS = 256
"""Decode attention runs over partitions of about this many tokens, merged by log-sum-exp. The split depends on
positions alone, so a sequence's sums are formed in the same order whoever shares the batch."""

PARTITIONS_AT_ONCE = 16
"""Few enough that their gathered keys and values are still in cache when they are multiplied."""


class _Scratch:
    """Memory that gathered blocks go to, kept from call to call: fresh memory costs a page fault every 4 KiB."""

    def __init__(self) -> None:
        self._raw = self._wide = torch.empty(0)

    def select(self, blocks: Tensor, index: Tensor) -> Tensor:
        """`blocks[index]` as float32; valid until the next call."""
        rows = blocks.flatten(1)
        shape = (len(index), rows.shape[1])
        if self._raw.numel() < math.prod(shape) or self._raw.dtype != rows.dtype:
            self._raw = rows.new_empty(math.prod(shape))
            self._wide = self._raw.float()
        raw = self._raw[: math.prod(shape)].view(shape)
        torch.index_select(rows, 0, index, out=raw)
        return raw if raw.dtype == torch.float32 else self._wide[: raw.numel()].view(shape).copy_(raw)


class ReferenceKVCache:
    """Keys and values as two tensors `[num_layers, num_kv_heads, num_blocks, block_size, head_dim]`.

    Head-major, so that gathered blocks are a batched-matmul operand as they are. Sums are formed in float32
    whatever the storage type. An int8 cache has a bfloat16 scale per token and head for each of the two,
    and holds keys rotated.
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
    ) -> None:
        self.num_blocks = num_blocks
        self.writer: object | None = None
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        shape = (num_layers, num_kv_heads, num_blocks, block_size, head_dim)
        self._keys = torch.zeros(shape, dtype=dtype)
        self._values = torch.zeros(shape, dtype=dtype)
        scales = (*shape[:-1], 1) if dtype == torch.int8 else (num_layers, num_kv_heads, num_blocks, 0, 1)
        self._key_scales = torch.zeros(scales, dtype=torch.bfloat16)
        self._value_scales = torch.zeros(scales, dtype=torch.bfloat16)
        self._head_offsets = torch.arange(num_kv_heads, dtype=torch.int32)[:, None] * num_blocks
        self._scratch = (_Scratch(), _Scratch())
        self._blocks_per_partition = max(1, PARTITION_TOKENS // block_size)

    def write(self, layer: int, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """Store `key` and `value` (`[num_tokens, num_kv_heads, head_dim]`) at `slots` (int64 `[num_tokens]`)."""
        if self.dtype == torch.int8:
            key = rotate(key)
        # The first token of a block clears the rest of it: a slot beyond a sequence's end is then zero, never
        # another's leftover, whose NaN would survive a weight of zero.
        begun = slots[slots % self.block_size == 0] // self.block_size
        for cache, scales, new in (
            (self._keys[layer], self._key_scales[layer], key),
            (self._values[layer], self._value_scales[layer], value),
        ):
            cache.index_fill_(1, begun, 0)
            if self.dtype == torch.int8:
                new, scale = quantise(new)
                scales.index_fill_(1, begun, 0)
                scales.flatten(1, 2).index_copy_(1, slots, scale.transpose(0, 1))
            cache.flatten(1, 2).index_copy_(1, slots, new.to(self.dtype).transpose(0, 1))

    def copy_blocks(self, source: Tensor, destination: Tensor) -> None:
        """Copy whole blocks in every layer and head, pair after pair (int32 block ids)."""
        for cache in (self._keys, self._values, self._key_scales, self._value_scales):
            native.copy_blocks(cache.flatten(0, 1), source, destination)

    def attend(
        self,
        layer: int,
        query: Tensor,
        batch: AttentionBatch,
        *,
        scale: float,
        sliding_window: int | None = None,
        softcap: float | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """Attention of `query` (`[num_tokens, num_heads, head_dim]`) over the paged keys and values."""
        output = torch.empty_like(query)
        if self.dtype == torch.int8:
            query, scale = rotate(query), scale / rotated_together(self.head_dim)
        logs = query.new_empty(query.shape[:2], dtype=torch.float32) if lse is None else lse
        decodes = batch.num_decodes
        if decodes:
            output[:decodes], logs[:decodes] = self._attend_decodes(
                layer, query[:decodes], batch, scale, sliding_window, softcap
            )
        starts = batch.query_starts.tolist()
        context_lens = batch.context_lens.tolist()
        for i in range(decodes, len(context_lens)):
            rows = slice(starts[i], starts[i + 1])
            chunk = (layer, query[rows], batch.block_tables[i], context_lens[i], scale, sliding_window)
            if softcap is None and lse is None:
                output[rows] = self._attend_chunk(*chunk)
            else:
                output[rows], logs[rows] = self._attend_chunk_plainly(*chunk, softcap)
        return output

    def _gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Float32 copies of the given blocks, `[num_kv_heads, *blocks.shape, block_size, head_dim]`."""
        # Heads and blocks as one leading axis: torch selects along the first axis at the speed of a copy.
        index = (self._head_offsets + blocks.flatten()).flatten()
        shape = (self.num_kv_heads, *blocks.shape, self.block_size, self.head_dim)
        gathered = (
            self._scratch[0].select(self._keys[layer].flatten(0, 1), index).view(shape),
            self._scratch[1].select(self._values[layer].flatten(0, 1), index).view(shape),
        )
        if self.dtype == torch.int8:
            for values, scales in zip(gathered, (self._key_scales[layer], self._value_scales[layer]), strict=True):
                values *= scales.flatten(0, 1)[index].view(*shape[:-1], 1)
        return gathered

    def _attend_decodes(
        self,
        layer: int,
        query: Tensor,
        batch: AttentionBatch,
        scale: float,
        sliding_window: int | None,
        softcap: float | None,
    ) -> tuple[Tensor, Tensor]:
        """One query row per sequence. Each partition of each sequence is attended to on its own, many at a time."""
        num_seqs, num_heads, head_dim = query.shape
        group = num_heads // self.num_kv_heads
        # [kv_heads, seqs, group, head_dim]: the query heads that share a key head stand together.
        q = query.float().view(num_seqs, self.num_kv_heads, group, head_dim).permute(1, 0, 2, 3) * scale
        lens = batch.context_lens[:num_seqs].long()
        first = torch.zeros_like(lens) if sliding_window is None else (lens - sliding_window).clamp_(min=0)

        width = self._blocks_per_partition
        begin, end = first // (width * self.block_size), -(-lens // (width * self.block_size))
        counts = end - begin
        owner = torch.repeat_interleave(torch.arange(num_seqs), counts)
        part = torch.arange(len(owner)) - (counts.cumsum(0) - counts - begin)[owner]

        stat = q.new_empty(self.num_kv_heads, len(owner), group, 1)
        highest, total, weighted = stat, torch.empty_like(stat), q.new_empty(*stat.shape[:-1], head_dim)
        for start in range(0, len(owner), PARTITIONS_AT_ONCE):
            items = slice(start, start + PARTITIONS_AT_ONCE)
            seq = owner[items]
            block = part[items, None] * width + torch.arange(width)
            # Where a sequence ends inside the partition, its own last block stands in for those it does not have.
            last = (lens[seq, None] - 1) // self.block_size
            key, value = self._gather(layer, batch.block_tables[seq[:, None], block.clamp(max=last)])
            position = block[:, :, None] * self.block_size + torch.arange(self.block_size)
            unseen = (position >= lens[seq, None, None]) | (position < first[seq, None, None])
            score = _capped(q[:, seq] @ key.flatten(2, 3).transpose(-1, -2), softcap)
            score.masked_fill_(unseen.flatten(1)[None, :, None, :], -math.inf)
            highest[:, items] = score.amax(-1, keepdim=True)
            weight = torch.exp(score - highest[:, items])
            total[:, items] = weight.sum(-1, keepdim=True)
            weighted[:, items] = weight @ value.flatten(2, 3)
        output, logs = self._merge(q, owner, part - begin[owner], highest, total, weighted)
        return output.to(query.dtype), logs

    @staticmethod
    def _merge(
        q: Tensor, owner: Tensor, rank: Tensor, highest: Tensor, total: Tensor, weighted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Join each sequence's partitions (`rank` 0, 1, …) in their order.

        Returns `[seqs, heads, head_dim]` and the log-sum-exp `[seqs, heads]`.
        """
        peak = q.new_full((*q.shape[:-1], 1), -math.inf)
        norm, sums = torch.zeros_like(peak), torch.zeros_like(q)
        for step in range(int(rank.max()) + 1):
            items = torch.nonzero(rank == step).flatten()
            seq = owner[items]
            new_peak = torch.maximum(peak[:, seq], highest[:, items])
            old, new = torch.exp(peak[:, seq] - new_peak), torch.exp(highest[:, items] - new_peak)
            norm[:, seq] = norm[:, seq] * old + total[:, items] * new
            sums[:, seq] = sums[:, seq] * old + weighted[:, items] * new
            peak[:, seq] = new_peak
        output = (sums / norm).permute(1, 0, 2, 3).reshape(q.shape[1], -1, q.shape[-1])
        return output, (peak + norm.log()).permute(1, 0, 2, 3).reshape(q.shape[1], -1)

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

    def _attend_chunk_plainly(
        self,
        layer: int,
        query: Tensor,
        table: Tensor,
        context_len: int,
        scale: float,
        sliding_window: int | None,
        softcap: float | None,
    ) -> tuple[Tensor, Tensor]:
        """As `_attend_chunk`, for what torch's own attention lacks: a soft cap, and the log-sum-exp."""
        num_queries, num_heads, head_dim = query.shape
        group = num_heads // self.num_kv_heads
        key, value = self._gather(layer, table[: math.ceil(context_len / self.block_size)])
        key, value = (x.flatten(1, 2)[:, None, :context_len] for x in (key, value))
        q = query.float().view(num_queries, self.num_kv_heads, group, head_dim).permute(1, 2, 0, 3)

        position = torch.arange(context_len)
        query_position = position[context_len - num_queries :, None]
        unseen = position > query_position
        if sliding_window is not None:
            unseen |= position <= query_position - sliding_window
        score = _capped(q @ key.transpose(-1, -2) * scale, softcap).masked_fill_(unseen, -math.inf)
        output = torch.softmax(score, -1) @ value
        logs = torch.logsumexp(score, -1).permute(2, 0, 1).reshape(num_queries, num_heads)
        return output.permute(2, 0, 1, 3).reshape(num_queries, num_heads, head_dim).to(query.dtype), logs


def quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """int8 `[…, head_dim]` and bfloat16 scales `[…, 1]`: largest absolute value / 127, rounded up to a bfloat16.

    The scale of a row with an infinity or a NaN is NaN, its numbers are 0.
    """
    rows = rows.float()
    exact = rows.abs().amax(-1, keepdim=True) / 127
    finite = exact.isfinite()
    bits = torch.where(finite, exact, 0.0).contiguous().view(torch.int32)
    scale = ((bits + 0xFFFF) >> 16 << 16).view(torch.float32)
    step = torch.where(finite & (scale > 0), scale, 1.0)
    numbers = torch.where(finite, rows / step, 0.0).round().clamp(-127, 127).to(torch.int8)
    return numbers, torch.where(finite, scale, math.nan).bfloat16()


def _capped(score: Tensor, softcap: float | None) -> Tensor:
    return score if softcap is None else softcap * torch.tanh(score / softcap)
