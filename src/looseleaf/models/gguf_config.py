"""Describes the model in a GGUF file in the words of a Hugging Face configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from looseleaf.models.config import ModelConfig
from looseleaf.models.errors import CorruptModelFile, InvalidModelConfig, UnsupportedModel
from looseleaf.models.gguf_file import GGUFFile
from looseleaf.models.gguf_tokens import TokenMetadata
from looseleaf.models.hf_config import Fields, config_from_hf
from looseleaf.models.registry import Family, family_of_gguf
from looseleaf.models.rope import FrequencyDivisors

ROPE_DIVISORS = "rope_freqs.weight"


def gguf_family(file: GGUFFile) -> Family:
    """Raises `UnsupportedModel` for an architecture that is not known."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise CorruptModelFile(f"{file.path} names no architecture.")
    return family_of_gguf(architecture)


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """The configuration of the model in `file`; raises what `config_from_hf` raises."""
    family = gguf_family(file)
    prefix = f"{family.gguf_architecture}."
    keys = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    if experts := Fields(keys).integer("expert_count", 0):
        raise UnsupportedModel(f"{file.path} is a mixture of {experts} experts: not supported.")
    window = Fields(keys).integer("attention.sliding_window", 0)
    tokens = TokenMetadata(file.metadata)
    head_dim = keys.get("attention.key_length")
    if keys.get("attention.value_length") != head_dim:
        raise UnsupportedModel("Keys and values of different width are not supported.")
    config = config_from_hf(
        {
            "architectures": [family.architecture],
            "vocab_size": _vocab_size(file, keys),
            "hidden_size": keys.get("embedding_length"),
            "intermediate_size": keys.get("feed_forward_length"),
            "num_hidden_layers": keys.get("block_count"),
            "num_attention_heads": keys.get("attention.head_count"),
            "num_key_value_heads": keys.get("attention.head_count_kv"),
            "head_dim": head_dim,
            "max_position_embeddings": keys.get("context_length"),
            "rms_norm_eps": keys.get("attention.layer_norm_rms_epsilon"),
            "rope_theta": keys.get("rope.freq_base"),
            "rope_scaling": _rope_scaling(keys),
            "tie_word_embeddings": "output.weight" not in file.tensors,
            "bos_token_id": tokens.token_id("bos"),
            "eos_token_id": list(tokens.end_token_ids()),
        }
    )
    rotated = keys.get("rope.dimension_count")
    if rotated not in (None, config.head_dim):
        raise UnsupportedModel(f"Rotating only {rotated} of {config.head_dim} numbers of each head is not supported.")
    return replace(
        config,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        attention_output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        sliding_windows=(window,) * config.num_layers if window else config.sliding_windows,
        rope_scaling=_divisors(file, config.head_dim) or config.rope_scaling,
    )


def _vocab_size(file: GGUFFile, keys: Mapping[str, Any]) -> Any:
    """The embedding's rows; the metadata's count is optional."""
    embedding = file.tensors.get("token_embd.weight")
    return keys.get("vocab_size") if embedding is None else embedding.shape[0]


def _rope_scaling(keys: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = keys.get("rope.scaling.type")
    if kind in (None, "none"):
        return None
    if Fields(keys).number("rope.scaling.attn_factor", 1.0) != 1.0:
        raise UnsupportedModel("A rotary scaling with its own attention factor is not supported in GGUF files.")
    scaling = {
        "rope_type": kind,
        "factor": keys.get("rope.scaling.factor"),
        "original_max_position_embeddings": keys.get("rope.scaling.original_context_length"),
    }
    return {key: value for key, value in scaling.items() if value is not None}


def _divisors(file: GGUFFile, head_dim: int) -> FrequencyDivisors | None:
    tensor = file.tensors.get(ROPE_DIVISORS)
    if tensor is None:
        return None
    if tensor.shape != (head_dim // 2,):
        raise InvalidModelConfig(f"{ROPE_DIVISORS!r} has the shape {list(tensor.shape)}, not [{head_dim // 2}].")
    divisors = tensor.rows(0, 1)[0]
    if not (np.isfinite(divisors).all() and (divisors > 0).all()):
        raise InvalidModelConfig(f"{ROPE_DIVISORS!r} must hold finite numbers above 0.")
    return FrequencyDivisors(tuple(divisors.tolist()))
