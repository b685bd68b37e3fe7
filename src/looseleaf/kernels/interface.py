"""What the model sees of the KV cache: where this step's tokens go, and what their queries attend to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

Cascade = Literal["auto", "on", "off"]
"""Whether sequences that share blocks have them read once for all: when it pays, always, or never. The same bits."""


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """One step's sequences, padding-free: `num_tokens` query rows, sequence after sequence.

    A sequence's queries are its *last* tokens: query row `j` of sequence `i` (of `q` rows) is at position
    `context_lens[i] - q + j` and attends to all positions up to its own.
    """

    block_tables: Tensor
    """int32 `[num_seqs, max_blocks]`; only the first ceil(context_len / block_size) entries of a row count."""
    context_lens: Tensor
    """int32 `[num_seqs]`: tokens in the cache once this step's are written."""
    query_starts: Tensor
    """int32 `[num_seqs + 1]`: first query row of each sequence; the last entry is `num_tokens`."""
    slots: Tensor
    """int64 `[num_tokens]`: slot that each query row's key and value go to."""
    num_decodes: int
    """The first `num_decodes` sequences have exactly one query row each."""
    cascade: Cascade = "auto"


class KVCache(Protocol):
    """The tensors of the pool. Their layout is the backend's own; nobody else indexes them."""

    num_blocks: int
    block_size: int
    dtype: torch.dtype
    writer: object | None
    """Whose tokens the blocks hold. Engines may take turns with one cache; whoever finds another's name here must not
    believe that what it left is still there."""

    def write(self, layer: int, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """Store `key` and `value` (`[num_tokens, num_kv_heads, head_dim]`) at `slots`."""
        ...

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
        """Attention of `query` (`[num_tokens, num_heads, head_dim]`) over the paged keys and values.

        `sliding_window=w`: a query at position p sees positions p-w+1 … p. `softcap=c`: scores become
        c · tanh(score / c). `lse`: float32 `[num_tokens, num_heads]` that receives the log of each row's sum of
        exp(score). Returns a tensor like `query`.
        """
        ...

    def copy_blocks(self, source: Tensor, destination: Tensor) -> None:
        """Copy whole blocks in every layer, pair after pair (int32 block ids)."""
        ...
