"""Which named tensor of a checkpoint goes where in the model, and the check that the two agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from looseleaf.models.config import ModelConfig
from looseleaf.models.decoder import CausalLM, DecoderLayer, empty_layer
from looseleaf.models.errors import UnsupportedModel, WeightsMismatch
from looseleaf.models.gguf_weights import GGUFWeights
from looseleaf.models.native_decoder import NativeCausalLM
from looseleaf.models.stored_weights import StoredWeights

_NAMES_SHOWN = 5


class WeightSource(Protocol):
    """A checkpoint on disk, under Hugging Face's tensor names."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape, without reading any of them."""
        ...

    def fits_bfloat16(self, name: str) -> bool:
        """Whether bfloat16 holds every number of a tensor because of how it is stored, without reading it."""
        ...

    def read_into(self, name: str, destination: Tensor) -> None:
        """Read one tensor, converted to the destination's dtype."""
        ...


def load_weights(config: ModelConfig, dtype: torch.dtype, source: WeightSource) -> CausalLM:
    """A model with the weights of `source`.

    The inventory is checked before any memory is taken. While loading, memory holds the model's weights and
    one tensor of the checkpoint. Raises `WeightsMismatch`, naming the tensors that are missing, unexpected or
    of another shape than the configuration makes them.
    """
    check_inventory(config, source)
    model = CausalLM(config, dtype)
    for name, destination in destinations(model).items():
        source.read_into(name, destination)
    return model


def load_native_weights(
    config: ModelConfig, dtype: torch.dtype, source: WeightSource, quantization: str = "none"
) -> NativeCausalLM:
    """As `load_weights`, for the native decoder: each layer is packed as soon as it is read.

    While loading, memory holds the packed weights so far, and of the checkpoint one layer or one matrix.
    """
    check_inventory(config, source)
    stored = None
    if quantization == "gguf":
        if not isinstance(source, GGUFWeights):
            raise UnsupportedModel(
                "quantization gguf keeps the blocks of a GGUF file, but this model is none.",
                hint="Use quantization int8 or none.",
            )
        stored = StoredWeights(source, config)
    model = NativeCausalLM(config, dtype, quantization)
    layer = empty_layer(config, 0, dtype)
    matrices = [name for name, place in _layer_destinations(config, layer).items() if place.dim() == 2]
    if all(source.fits_bfloat16(f"model.layers.{i}.{name}") for i in range(config.num_layers) for name in matrices):
        for name in ("qkv_weight", "o_weight", "gate_up_weight", "down_weight"):
            setattr(layer, name, torch.empty_like(getattr(layer, name), dtype=torch.bfloat16))  # no need to widen
    places = _layer_destinations(config, layer)
    for index in range(config.num_layers):
        kept = stored.layer_matrices(index) if stored else {}
        left_out = {name for names in kept.values() for name in names}
        for name, place in places.items():
            if (full_name := f"model.layers.{index}.{name}") not in left_out:
                source.read_into(full_name, place)
        model.set_layer(index, layer, stored.pack_layer(kept, layer) if stored else {})
    norm = torch.empty(config.hidden_size, dtype=dtype)
    source.read_into("model.norm.weight", norm)
    model.set_norm(norm)

    def matrix(name: str) -> Tensor:
        narrow = torch.bfloat16 if source.fits_bfloat16(name) else dtype
        read = torch.empty(config.vocab_size, config.hidden_size, dtype=narrow)
        source.read_into(name, read)
        return read

    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    if config.tie_word_embeddings:
        head = embedding
    else:
        model.set_embedding(matrix(embedding))
    packed = stored.pack_matrix(head) if stored else None
    model.set_lm_head(matrix(head) if packed is None else packed)
    return model


def check_inventory(config: ModelConfig, source: WeightSource) -> None:
    """Raise `WeightsMismatch` if the checkpoint's tensors are not those of the configuration."""
    expected = destinations(CausalLM(config, torch.float32, torch.device("meta")))
    _check(config, source.shapes(), {name: tuple(tensor.shape) for name, tensor in expected.items()})


def destinations(model: CausalLM) -> dict[str, Tensor]:
    """The place of every checkpoint tensor: a weight of the model, or its part of a joined one."""
    places = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.norm}
    if not model.config.tie_word_embeddings:
        places["lm_head.weight"] = model.lm_head
    for index, layer in enumerate(model.layers):
        for name, place in _layer_destinations(model.config, layer).items():
            places[f"model.layers.{index}.{name}"] = place
    return places


def _layer_destinations(config: ModelConfig, layer: DecoderLayer) -> dict[str, Tensor]:
    qkv_sizes = [heads * config.head_dim for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
    places: dict[str, Tensor | None] = {
        "input_layernorm.weight": layer.input_norm,
        "post_attention_layernorm.weight": layer.post_attention_norm,
        "self_attn.q_norm.weight": layer.q_norm,
        "self_attn.k_norm.weight": layer.k_norm,
        "self_attn.o_proj.weight": layer.o_weight,
        "self_attn.o_proj.bias": layer.o_bias,
        "mlp.down_proj.weight": layer.down_weight,
        "mlp.down_proj.bias": layer.down_bias,
    }
    for suffix, joined in (("weight", layer.qkv_weight), ("bias", layer.qkv_bias)):
        if joined is not None:
            parts = torch.split(joined, qkv_sizes)
            places |= {f"self_attn.{letter}_proj.{suffix}": part for letter, part in zip("qkv", parts, strict=True)}
    for suffix, joined in (("weight", layer.gate_up_weight), ("bias", layer.gate_up_bias)):
        if joined is not None:
            gate, up = joined.chunk(2)
            places |= {f"mlp.gate_proj.{suffix}": gate, f"mlp.up_proj.{suffix}": up}
    return {name: place for name, place in places.items() if place is not None}


def _check(config: ModelConfig, found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]) -> None:
    # A tied checkpoint may repeat the embedding as the output matrix; old Llama ones store rotary frequencies.
    ignored = {name for name in found if name.endswith(".rotary_emb.inv_freq")}
    if config.tie_word_embeddings:
        ignored.add("lm_head.weight")
    missing = expected.keys() - found.keys()
    unexpected = found.keys() - expected.keys() - ignored
    problems = [
        f"{name} is {list(found[name])} where the configuration makes it {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != shape
    ]
    if missing:
        problems.insert(0, f"missing: {_some(missing)}")
    if unexpected:
        problems.insert(0, f"unexpected: {_some(unexpected)}")
    if problems:
        more = f"; and {len(problems) - _NAMES_SHOWN} more" if len(problems) > _NAMES_SHOWN else ""
        raise WeightsMismatch(
            f"The weights do not fit {config.architecture} as configured: {'; '.join(problems[:_NAMES_SHOWN])}{more}.",
            hint="The configuration and the weights are of different models, or a shard is absent.",
        )


def _some(names: set[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(sorted(names)[:_NAMES_SHOWN]) + more
