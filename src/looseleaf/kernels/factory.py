"""The KV cache of the fastest backend there is."""

from __future__ import annotations

import torch

from looseleaf.kernels import native
from looseleaf.kernels.cpu import CpuKVCache
from looseleaf.kernels.interface import KVCache
from looseleaf.kernels.reference import ReferenceKVCache


def make_kv_cache(
    *,
    num_layers: int,
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
) -> KVCache:
    """The native cache where the native kernels are chosen, else the reference's."""
    kind = CpuKVCache if native.is_chosen() else ReferenceKVCache
    return kind(
        num_layers=num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
    )
