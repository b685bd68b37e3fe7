"""What the engine needs of a model, whichever way it computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from looseleaf.kernels.interface import AttentionBatch, KVCache
from looseleaf.models.config import ModelConfig
from looseleaf.models.lora import LoraAdapter


class Decoder(Protocol):
    """A model that reads token ids and the paged cache. For inference only: call it in `torch.inference_mode`."""

    config: ModelConfig
    dtype: torch.dtype
    """float32 or bfloat16: that of the keys and values, unless the engine is told otherwise."""

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, adapters included."""
        ...

    @property
    def adapters(self) -> Mapping[str, int]:
        """The adapters that rows can ask for: their numbers by name."""
        ...

    @property
    def max_lora_rank(self) -> int:
        """The largest of all adapters; 0 without."""
        ...

    def add_adapter(self, name: str, adapter: LoraAdapter) -> None:
        """Take in an adapter that was loaded for `self.config`; not during a step.

        Raises ValueError for a name that is taken: cached keys and values are known by it.
        """
        ...

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_cache: KVCache,
        batch: AttentionBatch,
        wanted: Tensor | None = None,
        adapters: Tensor | None = None,
    ) -> Tensor:
        """Run one step over `token_ids` (int64 `[T]`, all sequences one after another) at `positions` (int64 `[T]`).

        Writes the step's keys and values into `kv_cache` and returns hidden states after the final norm, `[R, hidden]`:
        those of the `wanted` rows (int64 `[R]`, ascending), by default of all. `adapters` (int64 `[T]`): the number of
        each row's adapter, or -1; by default no row has one, at no cost.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every vocabulary entry for each of `hidden`'s rows (`[R, hidden]`): float32 `[R, vocab]`."""
        ...
