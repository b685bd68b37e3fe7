"""How large the pool is: from a byte budget to blocks, with the arithmetic shown."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from looseleaf.engine.config import EngineConfig, format_bytes, parse_memory
from looseleaf.errors import ConfigurationError
from looseleaf.kernels import layout
from looseleaf.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class PoolSize:
    """The pool of one engine. `str()` of it is what the engine says at start."""

    num_blocks: int
    block_size: int
    max_model_len: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    kv_dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """One block in all layers, with the scales of an int8 cache."""
        return self.num_layers * layout.block_bytes(self.kv_dtype, self.block_size, self.num_kv_heads, self.head_dim)

    @property
    def bytes_per_token(self) -> int:
        return -(-self.block_bytes // self.block_size)

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size

    @property
    def nbytes(self) -> int:
        return self.num_blocks * self.block_bytes

    @property
    def blocks_per_longest(self) -> int:
        return -(-self.max_model_len // self.block_size)

    @property
    def longest_at_once(self) -> int:
        """Requests of `max_model_len` tokens that fit at once."""
        return self.num_blocks // self.blocks_per_longest

    def __str__(self) -> str:
        return (
            f"KV cache: {self.num_blocks:,} blocks × {self.block_size} tokens = {self.num_tokens:,} tokens "
            f"in {format_bytes(self.nbytes)}; {self.bytes_per_token:,} bytes per token ({self._formula()}). "
            f"Requests of the maximum length, {self.max_model_len:,} tokens, that fit at once: "
            f"{self.longest_at_once:,}."
        )

    def _formula(self) -> str:
        heads = f"2 × {self.num_layers} layers × {self.num_kv_heads} KV heads"
        size, scale = self.kv_dtype.itemsize, layout.SCALE_BYTES if self.kv_dtype == torch.int8 else 0
        plain = 2 * self.num_layers * self.num_kv_heads * (self.head_dim * size + scale)
        padding = self.bytes_per_token - plain
        return (
            (f"{heads} × ({self.head_dim} + a scale of {scale})" if scale else f"{heads} × {self.head_dim} × {size}")
            + " bytes"
            + (f" + {padding:,} of padding" if padding else "")
        )


def bytes_of_block(model: ModelConfig, config: EngineConfig) -> int:
    """Bytes of one block of `config.block_size` tokens in all layers, as `config.kv_cache_dtype` stores them."""
    layer = layout.block_bytes(config.torch_kv_dtype, config.block_size, model.num_kv_heads, model.head_dim)
    return model.num_layers * layer


def size_pool(model: ModelConfig, config: EngineConfig, *, available: int) -> PoolSize:
    """Blocks for `config.kv_cache_memory` bytes, and the longest sequence that they and the model allow.

    `available`: free memory in bytes, for budgets given as a share. A share is not taken beyond what
    `max_num_seqs` sequences of `max_model_len` could use; bytes given as a number are taken as they are.
    """
    budget = parse_memory(config.kv_cache_memory, available=available)
    block_bytes = bytes_of_block(model, config)
    num_blocks = budget // block_bytes
    if num_blocks < 1:
        raise ConfigurationError(
            f"A KV cache of {format_bytes(budget)} is too small for one block: {config.block_size} tokens × "
            f"{block_bytes / config.block_size:,.0f} bytes = {format_bytes(block_bytes)}.",
            hint=f"Give at least {format_bytes(block_bytes)}, or a smaller block size.",
        )
    if available and num_blocks * block_bytes > available:
        raise ConfigurationError(
            f"A KV cache of {format_bytes(budget)} was asked for but only {format_bytes(available)} are free.",
            hint="Ask for less, for example 50%.",
        )
    longest = model.max_position_embeddings if config.max_model_len is None else config.max_model_len
    if longest > model.max_position_embeddings:
        raise ConfigurationError(
            f"max_model_len is {longest:,} but the model knows positions up to {model.max_position_embeddings:,} only."
        )
    if isinstance(config.kv_cache_memory, str) and "%" in config.kv_cache_memory:
        num_blocks = min(num_blocks, config.max_num_seqs * -(-longest // config.block_size))
    if longest > num_blocks * config.block_size:
        if config.max_model_len is not None:
            needed = -(-longest // config.block_size)
            raise ConfigurationError(
                f"One sequence of max_model_len = {longest:,} tokens needs {needed:,} blocks of {config.block_size}; "
                f"{format_bytes(budget)} hold {num_blocks:,}.",
                hint=f"Lower max_model_len to {num_blocks * config.block_size:,} or give "
                f"{format_bytes(needed * block_bytes)}.",
            )
        longest = num_blocks * config.block_size
    return PoolSize(
        num_blocks,
        config.block_size,
        longest,
        model.num_layers,
        model.num_kv_heads,
        model.head_dim,
        config.torch_kv_dtype,
    )
