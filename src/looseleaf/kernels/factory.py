"""The KV cache of the fastest backend there is."""

from __future__ import annotations

import torch

from looseleaf.kernels import native
from looseleaf.kernels.cpu import CpuKVCache
from looseleaf.kernels.interface import KVCache
from looseleaf.kernels.layout import block_bytes
from looseleaf.kernels.pool_memory import MemoryNotLocked
from looseleaf.kernels.reference import ReferenceKVCache
from looseleaf.kernels.system_memory import lock_limit


def make_kv_cache(
    *,
    num_layers: int,
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    lock_memory: bool = False,
    wait_for_memory: bool = True,
) -> KVCache:
    """The native cache where the native kernels are chosen, else the reference's.

    Raises `PoolAllocationFailed` if memory is short, and `MemoryNotLocked`: the reference's memory cannot be locked.
    """
    if native.is_chosen():
        return CpuKVCache(
            num_layers=num_layers,
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            lock_memory=lock_memory,
            wait_for_memory=wait_for_memory,
        )
    if lock_memory:
        nbytes = num_layers * num_blocks * block_bytes(dtype, block_size, num_kv_heads, head_dim)
        raise MemoryNotLocked(nbytes, lock_limit(), "locking needs the native extension")
    return ReferenceKVCache(
        num_layers=num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        dtype=dtype,
    )
