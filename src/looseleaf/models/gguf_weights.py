"""Weights of a GGUF file under Hugging Face's names, dequantised.

A quantised tensor is decoded to bfloat16, the type these models were published in, and from there to the
type that is asked for; a tensor that is not quantised keeps its values. So the file means the same weights
in every dtype, and the same as a Hugging Face folder made from it: float32 and bfloat16 runs differ in
arithmetic alone. The digits that this drops are below the quantisation's own error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from looseleaf.models.config import ModelConfig
from looseleaf.models.errors import UnsupportedModel
from looseleaf.models.gguf_config import ROPE_DIVISORS, gguf_family
from looseleaf.models.gguf_file import GGUFFile, GGUFTensor

_OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_VALUES_AT_ONCE = 1 << 22
"""Decoded in slices of this many values: the embedding alone can be gigabytes in float32."""


class GGUFWeights:
    """Raises `UnsupportedModel` on construction for a tensor encoding that cannot be decoded."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        for tensor in {tensor.encoding: tensor for tensor in file.tensors.values()}.values():
            _check_encoding(tensor)
        self._heads = {}
        if gguf_family(file).gguf_permutes_qk:
            self._heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
        self._tensors: dict[str, GGUFTensor] = {}
        for tensor in file.tensors.values():
            if tensor.name != ROPE_DIVISORS:
                self._tensors[_hugging_face_name(tensor.name)] = tensor

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def fits_bfloat16(self, name: str) -> bool:
        return self._tensors[name].is_quantised or self.encoding(name) == "BF16"

    def read_into(self, name: str, destination: Tensor) -> None:
        tensor = self._tensors[name]
        rows, width = tensor.data.shape[0], tensor.shape[-1]
        decoded_rows = destination.view(rows, width)
        step = max(1, _VALUES_AT_ONCE // width)
        for start in range(0, rows, step):
            decoded_rows[start : start + step] = (
                tensor.rounded_rows(start, start + step)
                if tensor.is_quantised
                else torch.from_numpy(tensor.rows(start, start + step))
            )
        projection = name.split(".")[-2]
        if projection in self._heads:
            _undo_rotary_order(destination, self._heads[projection])

    def encoding(self, name: str) -> str:
        """As the gguf package calls it: "Q4_1"."""
        encoding: str = self._tensors[name].encoding.name
        return encoding

    def stored_blocks(self, names: Sequence[str]) -> StoredBlocks:
        """Quantised matrices of one encoding as the file stores them, one below another."""
        tensors = [self._tensors[name] for name in names]
        parts = []
        for name, tensor in zip(names, tensors, strict=True):
            rows = torch.from_numpy(tensor.data)
            projection = name.split(".")[-2]
            if projection in self._heads:  # whole rows move, and a block lies within one
                rows = rows.clone()
                _undo_rotary_order(rows, self._heads[projection])
            parts.append(rows)
        joined = torch.cat(parts) if len(parts) > 1 else parts[0]
        return StoredBlocks(self.encoding(names[0]), joined, tensors[0].shape[-1])


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A matrix in the blocks of its file."""

    encoding: str
    rows: Tensor
    """uint8 `[rows, bytes of a row]`"""
    columns: int


def _undo_rotary_order(projection: Tensor, num_heads: int) -> None:
    """llama.cpp rotates neighbouring rows, transformers rows half a head apart; convert the rows' order in place."""
    pairs = projection.view(num_heads, projection.shape[0] // num_heads // 2, 2, -1)
    projection.copy_(pairs.transpose(1, 2).reshape(projection.shape))


def _hugging_face_name(name: str) -> str:
    """The name as it is where the file follows another naming: it is then reported as unexpected."""
    match name.split("."):
        case ["blk", index, layer_name, suffix] if layer_name in _LAYER_NAMES:
            return f"model.layers.{index}.{_LAYER_NAMES[layer_name]}.{suffix}"
        case [outer_name, suffix] if outer_name in _OUTER_NAMES:
            return f"{_OUTER_NAMES[outer_name]}.{suffix}"
    return name


def _check_encoding(tensor: GGUFTensor) -> None:
    """The decoders are the gguf package's, so it is asked: with one row."""
    try:
        tensor.rows(0, 1)
    except NotImplementedError:
        raise UnsupportedModel(
            f"The tensor {tensor.name!r} is encoded as {tensor.encoding.name}, which cannot be decoded.",
            hint="Use another quantisation of the model.",
        ) from None
