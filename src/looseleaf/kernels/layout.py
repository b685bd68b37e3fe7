"""Bytes of the paged KV cache, scales included: what a pool of so many blocks takes."""

from __future__ import annotations

import torch

SCALE_BYTES = 2
"""An int8 cache holds one bfloat16 scale per token and head for the keys, and one for the values."""


def block_bytes(kv_dtype: torch.dtype, block_size: int, num_kv_heads: int, head_dim: int) -> int:
    """Bytes of one block of `block_size` tokens in one layer: keys, values and (int8) their scales."""
    scale = SCALE_BYTES if kv_dtype == torch.int8 else 0
    return 2 * block_size * num_kv_heads * (head_dim * kv_dtype.itemsize + scale)
