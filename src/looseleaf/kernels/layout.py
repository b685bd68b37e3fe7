"""Bytes of the paged KV cache, scales included: what a pool of so many blocks takes."""

from __future__ import annotations

import torch

KV_DTYPES = (torch.float32, torch.bfloat16, torch.int8)

SCALE_BYTES = 2
"""An int8 cache holds one bfloat16 scale per token and head for the keys, and one for the values."""

_ALIGNMENT = 64
"""Blocks begin at whole cache lines."""


def block_bytes(kv_dtype: torch.dtype, block_size: int, num_kv_heads: int, head_dim: int) -> int:
    """Bytes of one block of `block_size` tokens in one layer: keys, values and (int8) their scales.

    2 × heads × (head_dim × element + scale) bytes per token, and what fills a block up to a whole cache line: nothing
    for blocks of 16 tokens or a multiple, whose heads have a multiple of 8 dimensions.
    """
    scale = SCALE_BYTES if kv_dtype == torch.int8 else 0
    plain = 2 * block_size * num_kv_heads * (head_dim * kv_dtype.itemsize + scale)
    return -(-plain // _ALIGNMENT) * _ALIGNMENT
