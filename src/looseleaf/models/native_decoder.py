"""The decoder as one native call per step: the same network as `decoder.CausalLM`, which it is tested against.

Activations are float32 between operations whatever the weights are. Weights whose values bfloat16 can hold are kept
as bfloat16, in every dtype: nothing is lost, and a step that reads each weight once takes half the time.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from looseleaf.kernels.cpu import CpuKVCache
from looseleaf.kernels.interface import AttentionBatch, KVCache
from looseleaf.kernels.linear import PackedLinear, WeightType, pack, pack_gate_up
from looseleaf.models.config import ModelConfig
from looseleaf.models.decoder import CausalLM, DecoderLayer
from looseleaf.models.lora import LoraAdapter
from looseleaf.models.rope import RotaryTable

PHASES = ("embed", "norms", "qkv", "rotate, write", "attention", "out", "gate, up", "down", "head", "adapters")


_ADAPTED = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "o": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}
"""The projections that each of a layer's products joins."""

_NOTHING: Mapping[str, PackedLinear] = MappingProxyType({})


class NativeCausalLM:
    """See `looseleaf.models.interface.Decoder`. Give it every weight by the `set_…` methods first: they copy.

    Keys and values are read and written in a `CpuKVCache`. One thread at a time computes with it; others wait.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, quantization: str = "none") -> None:
        """`quantization`: "int8" rounds the matrices to 8 bits; otherwise no weight's value is changed."""
        self.config = config
        self.dtype = dtype
        self._quantization = quantization
        self._nbytes = 0
        self.adapters: dict[str, int] = {}
        self.max_lora_rank = 0
        self._rotary = RotaryTable(
            config.head_dim, config.max_position_embeddings, config.rope_theta, config.rope_scaling, torch.float32
        )
        self._handle: int = torch.ops.looseleaf.decoder_create(
            config.vocab_size,
            config.hidden_size,
            config.intermediate_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.rms_norm_eps,
            [window or 0 for window in config.sliding_windows],
        )
        weakref.finalize(self, torch.ops.looseleaf.decoder_destroy, self._handle)

    @classmethod
    def from_reference(cls, model: CausalLM, quantization: str = "none") -> NativeCausalLM:
        """The same model; `model` keeps its weights."""
        native = cls(model.config, model.dtype, quantization)
        for index, layer in enumerate(model.layers):
            native.set_layer(index, layer)
        native.set_norm(model.norm)
        native.set_lm_head(model.lm_head)
        if not model.config.tie_word_embeddings:
            native.set_embedding(model.embedding)
        return native

    @property
    def nbytes(self) -> int:
        return self._nbytes

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the activations kept between steps: those of the largest step so far."""
        size: int = self._call("scratch_bytes")
        return size

    def set_layer(self, index: int, layer: DecoderLayer, packed: Mapping[str, PackedLinear] = _NOTHING) -> None:
        """Copy one layer's weights into the form in which they are streamed.

        `packed`: matrices of it that are in that form already, by the names of `set_linear`.
        """
        self._set_norm(index, "input_norm", layer.input_norm)
        self._set_norm(index, "post_attention_norm", layer.post_attention_norm)
        if layer.q_norm is not None and layer.k_norm is not None:
            self._set_norm(index, "q_norm", layer.q_norm)
            self._set_norm(index, "k_norm", layer.k_norm)
        for name, weight, bias in (
            ("qkv", layer.qkv_weight, layer.qkv_bias),
            ("o", layer.o_weight, layer.o_bias),
            ("gate_up", layer.gate_up_weight, layer.gate_up_bias),
            ("down", layer.down_weight, layer.down_bias),
        ):
            self.set_linear(index, name, packed.get(name) or self._pack(name, weight, bias))

    def set_norm(self, norm: Tensor) -> None:
        """The norm after the last layer."""
        self._set_norm(0, "norm", norm)

    def set_lm_head(self, lm_head: Tensor | PackedLinear) -> None:
        """The output matrix, `[vocab, hidden]`; of a tied model, the embedding."""
        packed = lm_head if isinstance(lm_head, PackedLinear) else self._pack("lm_head", lm_head, None)
        self.set_linear(0, "lm_head", packed)

    def set_embedding(self, embedding: Tensor) -> None:
        """The embedding of a model that is not tied."""
        table = embedding.to(torch.bfloat16 if fits_bfloat16(embedding) else torch.float32, copy=True)
        self._call("set_embedding", table)
        self._nbytes += table.nbytes

    def set_linear(self, index: int, name: str, packed: PackedLinear) -> None:
        """`name`: "qkv", "o", "gate_up" (packed by `pack_gate_up`), "down"; or "lm_head", whatever the index."""
        self._call(
            "set_linear",
            index,
            name,
            packed.type,
            packed.out_features,
            packed.in_features,
            packed.weight,
            packed.scales,
            packed.minima,
            packed.bias,
        )
        self._nbytes += packed.nbytes

    def add_adapter(self, name: str, adapter: LoraAdapter) -> None:
        """See `Decoder.add_adapter`; it copies the weights."""
        if name in self.adapters:
            raise ValueError(f"there is an adapter {name!r} already")
        number: int = self._call("add_adapter")
        for index, layer in enumerate(adapter.layers):
            for product, projections in _ADAPTED.items():
                given = [(part, layer[each]) for part, each in enumerate(projections) if each in layer]
                if not given:
                    continue
                a = _pack_losslessly(torch.cat([matrices.a.float() for _, matrices in given]))
                self._call("set_adapter_input", number, index, product, a.type, a.out_features, a.in_features, a.weight)
                first = 0
                for part, matrices in given:
                    outputs, rank = matrices.b.shape
                    b = pack_low_rank(matrices.b)
                    place = (number, index, product, part, first, rank, matrices.scaling)
                    self._call("add_adapter_part", *place, outputs, b)
                    first += rank
                    self._nbytes += b.nbytes
                self._nbytes += a.nbytes
        self.adapters[name] = number
        self.max_lora_rank = max(self.max_lora_rank, adapter.max_rank)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_cache: KVCache,
        batch: AttentionBatch,
        wanted: Tensor | None = None,
        adapters: Tensor | None = None,
    ) -> Tensor:
        """One step; see `Decoder.forward`. Returns float32 `[R, hidden]`.

        Raises IndexError for a token, position, slot, block, row or adapter that does not exist, ValueError for tensors
        that do not fit together, TypeError for a cache of another kind.
        """
        if not isinstance(kv_cache, CpuKVCache):
            raise TypeError(f"The native decoder needs a CpuKVCache, not a {type(kv_cache).__name__}.")
        angles = self._rotary.table(int(positions.max()) + 1 if positions.numel() else 1)
        rows = len(token_ids) if wanted is None else len(wanted)
        hidden = torch.empty(rows, self.config.hidden_size)
        self._call(
            "forward",
            token_ids,
            positions,
            angles,
            kv_cache.storage,
            str(kv_cache.dtype).removeprefix("torch."),
            kv_cache.num_blocks,
            kv_cache.block_size,
            batch.block_tables,
            batch.context_lens,
            batch.query_starts,
            batch.slots,
            batch.cascade,
            wanted,
            adapters,
            hidden,
        )
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every vocabulary entry for each of `hidden`'s rows (`[R, hidden]`): float32 `[R, vocab]`."""
        scores = torch.empty(hidden.shape[0], self.config.vocab_size)
        self._call("logits", hidden.contiguous(), scores)
        return scores

    def take_phase_seconds(self) -> dict[str, float]:
        """Seconds spent since the last call in each phase of the steps, by name."""
        return dict(zip(PHASES, self._call("phase_seconds"), strict=True))

    def _call(self, operator: str, *arguments: Any) -> Any:
        try:
            return getattr(torch.ops.looseleaf, f"decoder_{operator}")(self._handle, *arguments)
        except RuntimeError as error:
            # Without the place in the source that comes before what the native checks found.
            message = re.sub(r"^\w+, [^,]*:\d+, ", "", str(error).partition("\n")[0])
            kind = IndexError if message.startswith("IndexError: ") else ValueError
            raise kind(message.removeprefix("IndexError: ")) from None

    def _pack(self, name: str, weight: Tensor, bias: Tensor | None) -> PackedLinear:
        kind: WeightType = "float32"
        if self._quantization == "int8":
            kind = "int8"
        elif fits_bfloat16(weight):
            kind = "bfloat16"
        if name != "gate_up":
            return pack(weight, kind, bias)
        gate, up = weight.chunk(2)
        return pack_gate_up(gate, up, kind, *((None, None) if bias is None else bias.chunk(2)))

    def _set_norm(self, index: int, name: str, weight: Tensor) -> None:
        kept = weight.float().clone()
        self._call("set_norm", index, name, kept)
        self._nbytes += kept.nbytes


def _pack_losslessly(weight: Tensor) -> PackedLinear:
    return pack(weight, "bfloat16" if fits_bfloat16(weight) else "float32")


def pack_low_rank(b: Tensor) -> Tensor:
    """`b` (`[outputs, rank]`) as the native step streams it: panels of 16 outputs, the rank's columns outermost, in
    bfloat16 (where that holds every number) in pairs."""
    outputs, rank = b.shape
    dtype = torch.bfloat16 if fits_bfloat16(b) else torch.float32
    padded = torch.zeros(-(-outputs // 16) * 16, rank + rank % 2, dtype=dtype)
    padded[:outputs, :rank] = b
    if dtype == torch.float32:
        return padded.view(-1, 16, padded.shape[1]).transpose(1, 2).contiguous()
    return padded.view(-1, 16, padded.shape[1] // 2, 2).transpose(1, 2).contiguous()


def fits_bfloat16(weight: Tensor) -> bool:
    """Whether bfloat16 holds every number of `weight` (float32 or bfloat16) exactly."""
    if weight.dtype == torch.bfloat16:
        return True
    # The 16 low bits of a float32 are what bfloat16 lacks.
    return not bool((weight.view(torch.int16)[..., ::2] != 0).any())
