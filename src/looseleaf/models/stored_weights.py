"""The matrices of a GGUF file packed for the kernels as the file quantises them, without widening them first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from looseleaf.kernels.linear import GgufFormat, PackedLinear, pack_gguf, pack_gguf_gate_up
from looseleaf.models.config import ModelConfig
from looseleaf.models.decoder import DecoderLayer
from looseleaf.models.errors import UnsupportedModel
from looseleaf.models.gguf_weights import GGUFWeights, StoredBlocks

LAYER_MATRICES = {
    "qkv": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "o": ("self_attn.o_proj.weight",),
    "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down": ("mlp.down_proj.weight",),
}
"""The tensors of a checkpoint that make up each matrix of a layer."""


class StoredWeights:
    """Finds the matrices of `source` that can stay as they are: those whose tensors have one encoding among
    `GgufFormat`. The others are decoded, as without quantisation.

    Raises `UnsupportedModel` on construction if there are none.
    """

    def __init__(self, source: GGUFWeights, config: ModelConfig) -> None:
        self._source = source
        self._config = config
        if not any(self.layer_matrices(index) for index in range(config.num_layers)):
            encodings = sorted({source.encoding(name) for name in source.shapes()})
            raise UnsupportedModel(
                f"quantization gguf keeps {', '.join(get_args(GgufFormat))}, but no layer of this file has these; it "
                f"has {', '.join(encodings)}.",
                hint="Use quantization int8 or none.",
            )

    def layer_matrices(self, index: int) -> dict[str, tuple[str, ...]]:
        """The matrices of layer `index` that stay as they are, with the checkpoint's names of their tensors."""
        found = {}
        for matrix, names in LAYER_MATRICES.items():
            tensors = tuple(f"model.layers.{index}.{name}" for name in names)
            biased_pair = matrix == "gate_up" and self._config.mlp_bias  # which pack_gguf_gate_up does not know
            if self._can_stay(tensors) and not biased_pair:
                found[matrix] = tensors
        return found

    def pack_layer(self, matrices: Mapping[str, tuple[str, ...]], layer: DecoderLayer) -> dict[str, PackedLinear]:
        """Pack `matrices` of `layer_matrices`, with the biases that `layer` holds already."""
        biases = {"qkv": layer.qkv_bias, "o": layer.o_bias, "down": layer.down_bias}
        packed = {}
        for matrix, names in matrices.items():
            if matrix == "gate_up":
                gate, up = (self._source.stored_blocks((name,)) for name in names)
                packed[matrix] = pack_gguf_gate_up(gate.rows, up.rows, _format(gate), gate.columns)
            else:
                blocks = self._source.stored_blocks(names)
                packed[matrix] = pack_gguf(blocks.rows, _format(blocks), blocks.columns, biases[matrix])
        return packed

    def pack_matrix(self, name: str) -> PackedLinear | None:
        """A matrix that is one tensor, or None if it cannot stay."""
        if not self._can_stay((name,)):
            return None
        blocks = self._source.stored_blocks((name,))
        return pack_gguf(blocks.rows, _format(blocks), blocks.columns)

    def _can_stay(self, names: tuple[str, ...]) -> bool:
        encodings = {self._source.encoding(name) for name in names}
        return len(encodings) == 1 and encodings <= set(get_args(GgufFormat))


def _format(blocks: StoredBlocks) -> GgufFormat:
    format: GgufFormat = blocks.encoding  # type: ignore[assignment]  # `_can_stay` has looked
    return format
