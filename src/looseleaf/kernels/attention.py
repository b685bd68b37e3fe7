"""Paged attention as a plain function, for whoever has a cache and tables of their own."""

from __future__ import annotations

import torch
from torch import Tensor

from looseleaf.kernels.interface import AttentionBatch, KVCache


def paged_attention(
    query: Tensor,
    cache: KVCache,
    layer: int,
    block_tables: Tensor,
    context_lens: Tensor,
    query_starts: Tensor,
    *,
    scale: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Causal attention over a paged cache, of decodes and chunks of prompts alike, mixed at will.

    query: `[num_tokens, num_heads, head_dim]`, float32 or bfloat16, sequence after sequence. A sequence's queries are
    its last tokens, whose keys and values `cache.write` has stored; num_heads is a multiple of the cache's KV heads.
    block_tables: int32 `[num_seqs, max_blocks]`. context_lens: int32 `[num_seqs]`, the tokens of each sequence in the
    cache. query_starts: int32 `[num_seqs + 1]`, the first query row of each, and at last `num_tokens`.
    scale: of the scores, by default 1/√head_dim. sliding_window=w: position p sees p-w+1 … p. softcap=c: scores become
    c · tanh(score / c).

    Returns the attention, like `query`, and with `return_lse` float32 `[num_tokens, num_heads]`, the log of each row's
    sum of exp(score), with which attention over other tokens can be merged. Raises ValueError for tensors that do not
    fit together, IndexError for a block outside the pool.
    """
    lens = query_starts[1:] - query_starts[:-1]
    decodes = int((lens != 1).int().argmax()) if bool((lens != 1).any()) else len(lens)
    slots = torch.empty(0, dtype=torch.int64)
    batch = AttentionBatch(block_tables, context_lens, query_starts, slots, decodes)
    lse = torch.empty(query.shape[:2]) if return_lse else None
    out = cache.attend(
        layer,
        query,
        batch,
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        sliding_window=sliding_window,
        softcap=softcap,
        lse=lse,
    )
    return out, lse
