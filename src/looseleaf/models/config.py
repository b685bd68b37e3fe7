"""What a decoder is made of: the numbers that shapes, KV bytes and positions follow from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from looseleaf.models.errors import InvalidModelConfig
from looseleaf.models.rope import RopeScaling

MAX_LAYERS = 1 << 12

_LARGEST = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_layers": MAX_LAYERS,
    "num_heads": 1 << 12,
    "num_kv_heads": 1 << 12,
    "head_dim": 1 << 12,
    "max_position_embeddings": 1 << 24,
}
"""Far above every published model: a number beyond these is a damaged file, and must not become an allocation."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer of the Llama kind, whatever file described it. Checked on construction.

    Raises `InvalidModelConfig` when a number is out of range or the numbers contradict each other.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    qkv_bias: bool
    """Biases on the query, key and value projections (Qwen2; Llama with `attention_bias`)."""
    attention_output_bias: bool
    """Bias on the attention's output projection (Llama with `attention_bias`)."""
    mlp_bias: bool
    qk_norm: bool
    """RMS norm on each query and key head before the rotation (Qwen3)."""
    sliding_windows: tuple[int | None, ...]
    """Per layer: how many last positions a query sees, or None for all of them."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, largest in _LARGEST.items():
            if not 1 <= getattr(self, name) <= largest:
                raise InvalidModelConfig(f"{name} is {getattr(self, name)}; it must be between 1 and {largest}.")
        for name, above in (("rms_norm_eps", 0), ("rope_theta", 1)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > above):
                raise InvalidModelConfig(f"{name} is {value}; it must be a finite number above {above}.")
        if self.num_heads % self.num_kv_heads:
            raise InvalidModelConfig(
                f"{self.num_heads} query heads cannot be shared out among {self.num_kv_heads} key-value heads."
            )
        if self.head_dim % 2:
            raise InvalidModelConfig(f"head_dim is {self.head_dim}; rotary embedding needs an even number.")
        if len(self.sliding_windows) != self.num_layers:
            raise InvalidModelConfig(
                f"The attention kind of {len(self.sliding_windows)} layers is given; the model has {self.num_layers}."
            )
        if shortest := [window for window in self.sliding_windows if window is not None and window < 1]:
            raise InvalidModelConfig(f"A sliding window must be at least 1; found {min(shortest)}.")
        outside = [token for token in (*self.eos_token_ids, self.bos_token_id or 0) if not 0 <= token < self.vocab_size]
        if outside:
            raise InvalidModelConfig(f"Special token ids {outside} lie outside the vocabulary of {self.vocab_size}.")

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes that one token's keys and values take: 2 · layers · KV heads · head_dim · bytes per number."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype.itemsize
