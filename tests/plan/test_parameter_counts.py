"""Parameters of every family, counted by building the architecture's own code without storage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from looseleaf.plan.arithmetic import ModelArithmetic
from looseleaf.plan.model_config import load_model, read_model
from looseleaf.plan.shape import Experts, ModelShape

PUBLISHED = [
    "Qwen--Qwen3.5-27B",
    "Qwen--Qwen3.5-35B-A3B",
    "XiaomiMiMo--MiMo-V2-Flash",
    "deepseek-ai--DeepSeek-V3.2",
    "deepseek-v2-lite",
    "google--gemma-4-26B-A4B",
    "meta-llama--Llama-4-Scout-17B-16E-Instruct",
    "nvidia--Gemma-4-31B-IT-NVFP4",
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "openai--gpt-oss-20b",
]

COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
}

SMALL: list[dict[str, Any]] = [
    {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    {"model_type": "mistral", "head_dim": 24, "sliding_window": 64},
    {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
    {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
    {
        "model_type": "qwen3_moe",
        "head_dim": 32,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    },
    {"model_type": "phi3", "pad_token_id": 0},
    {"model_type": "falcon", "multi_query": True, "bias": True},
    {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2},
    {"model_type": "falcon", "multi_query": False, "parallel_attn": False, "alibi": True},
    {"model_type": "opt", "ffn_dim": 96, "word_embed_proj_dim": 64},
    {"model_type": "starcoder2", "use_bias": True},
    {"model_type": "gemma", "head_dim": 32},
    {"model_type": "gemma2", "head_dim": 32},
    {"model_type": "gemma3_text", "head_dim": 32, "sliding_window": 32},
    {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    {
        "model_type": "gemma4_text",
        "head_dim": 16,
        "global_head_dim": 32,
        "num_global_key_value_heads": None,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 128,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "pad_token_id": 0,
    },
]


def count(values: dict[str, Any]) -> int:
    """Of the model that transformers builds."""
    kind = {"kimi_k2": "deepseek_v3"}.get(values["model_type"], values["model_type"])
    config = transformers.CONFIG_MAPPING[kind].from_dict(values)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def router_biases(shape: ModelShape) -> int:
    """Corrections of the routers: in published weights, but no parameters to transformers."""
    parts = [layer.feed_forward for layer in shape.layers]
    corrected = shape.architecture != "GptOssForCausalLM"
    return sum(part.count for part in parts if isinstance(part, Experts) and part.router_bias and corrected)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models(configs: Path, name: str) -> None:
    values = json.loads((configs / f"{name}.json").read_text())
    shape = load_model(configs / f"{name}.json")
    text = {"tie_word_embeddings": values.get("tie_word_embeddings", False), **values.get("text_config", values)}
    text.pop("quantization_config", None)
    assert ModelArithmetic(shape).parameters.total - router_biases(shape) == count(text)


@pytest.mark.parametrize("values", SMALL, ids=lambda values: values["model_type"])
def test_small_models(values: dict[str, Any]) -> None:
    values = {**COMMON, **values}
    assert ModelArithmetic(read_model({**values, "torch_dtype": "bfloat16"})).parameters.total == count(values)
