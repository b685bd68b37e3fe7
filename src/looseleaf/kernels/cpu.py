"""The native KV cache on the CPU: one block of memory that the C++ kernels read where it lies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from looseleaf.kernels import native
from looseleaf.kernels.interface import AttentionBatch
from looseleaf.kernels.layout import KV_DTYPES, block_bytes
from looseleaf.kernels.pool_memory import allocate_pool


class CpuKVCache:
    """Keys and values in one uint8 tensor `storage`, `[num_layers, num_blocks, block_bytes]`.

    What is in a block is the kernels' own (csrc/attention/kv_layout.h). A row's attention is bitwise the same whatever
    else is in the batch, however many threads there are, however the prompt was cut, and whichever blocks it got.
    Slots beyond a sequence's end may hold anything.
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
        lock_memory: bool = False,
        wait_for_memory: bool = True,
    ) -> None:
        """`lock_memory`, `wait_for_memory`: see `allocate_pool`. Raises `PoolAllocationFailed`,
        `MemoryNotLocked`, or ValueError for a dtype that is not supported."""
        if dtype not in KV_DTYPES:
            raise ValueError(f"the KV cache can be float32, bfloat16 or int8, not {dtype}")
        self.num_layers = num_layers
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.writer: object | None = None
        self.dtype_name = str(dtype).removeprefix("torch.")
        size = block_bytes(dtype, block_size, num_kv_heads, head_dim)
        nbytes = num_layers * num_blocks * size
        storage = allocate_pool(nbytes, lock=lock_memory, wait=wait_for_memory, parts=num_layers)
        self.storage = storage.view(num_layers, num_blocks, size)

    def write(self, layer: int, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """Store `key` and `value` (`[num_tokens, num_kv_heads, head_dim]`) at `slots` (int64 `[num_tokens]`).

        Raises ValueError for tensors that do not fit, IndexError for a slot outside the pool.
        """
        with _typed_errors():
            torch.ops.looseleaf.kv_write(self.storage, layer, _rows(key), _rows(value), slots, *self._layout())

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
        """Attention of `query` (`[num_tokens, num_heads, head_dim]`) over the paged keys and values; a tensor like it.

        See `KVCache.attend`. Raises ValueError for tensors that do not fit, IndexError for a block outside the pool.
        """
        rows = _rows(query)
        out = torch.empty(rows.shape)
        window = 0 if sliding_window is None else sliding_window
        with _typed_errors():
            torch.ops.looseleaf.kv_attend(
                self.storage,
                layer,
                rows,
                out,
                lse,
                batch.block_tables,
                batch.context_lens,
                batch.query_starts,
                batch.cascade,
                scale,
                window,
                softcap or 0.0,
                *self._layout(),
            )
        return out.to(query.dtype)

    def copy_blocks(self, source: Tensor, destination: Tensor) -> None:
        """Copy whole blocks in every layer, pair after pair (int32 block ids)."""
        native.copy_blocks(self.storage, source, destination)

    def _layout(self) -> tuple[str, int, int, int]:
        return self.dtype_name, self.block_size, self.num_kv_heads, self.head_dim


@contextmanager
def _typed_errors() -> Iterator[None]:
    """What the operators' checks refuse, as IndexError if an index is outside something, else as ValueError."""
    try:
        yield
    except RuntimeError as error:
        message = str(error).partition("\n")[0]
        raise (IndexError if " outside the " in message else ValueError)(message) from None


def _rows(tensor: Tensor) -> Tensor:
    """As float32 with each token's heads contiguous."""
    if tensor.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"float32 or bfloat16 tensors are expected, not {tensor.dtype}")
    tensor = tensor.float()
    fits = tensor.dim() == 3 and tensor.stride(2) == 1 and tensor.stride(1) == tensor.shape[2]
    return tensor if fits else tensor.contiguous()
