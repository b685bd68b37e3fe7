"""For one model, dtype and seed, tokens and logprobs are the same bits: alone or in company, in one chunk or many, cold
or from the prefix cache, preempted and recomputed, forked or a request of its own, on one thread or two."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from exactness import Stand
from looseleaf.kernels import native
from looseleaf.models.config import ModelConfig
from looseleaf.models.lora import LoraAdapter, LoraMatrices
from looseleaf.models.lora_config import PROJECTIONS
from looseleaf.models.native_decoder import NativeCausalLM
from looseleaf.models.rope import Llama3Scaling
from serving_scenario import ADAPTERS, Scenario, scenarios
from tiny_adapter import projection_sizes
from tiny_model import tiny_model

pytestmark = pytest.mark.skipif(not native.is_chosen(), reason="the native kernels promise it; they are not there")

EXAMPLES = int(os.environ.get("LOOSELEAF_EXACTNESS_EXAMPLES", "30"))
"""Scenarios per form of weights; CONTRIBUTING.md says how to run many."""

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": Llama3Scaling(8.0, 1.0, 4.0, 64)},
    "llama-biases": {"num_kv_heads": 1, "qkv_bias": True, "attention_output_bias": True, "mlp_bias": True},
    "smollm2": {"num_heads": 3, "num_kv_heads": 1, "head_dim": 32, "hidden_size": 96, "tie_word_embeddings": True},
    "mistral": {"sliding_windows": (70, 70)},
    "qwen2": {"num_kv_heads": 4, "qkv_bias": True, "sliding_windows": (None, 300), "tie_word_embeddings": True},
    "qwen3": {"head_dim": 32, "qk_norm": True},
}


def model_of(family: str, weights: str) -> NativeCausalLM:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "max_position_embeddings": 1024}
    model = tiny_model(**(sizes | FAMILIES[family]))
    if weights == "bfloat16":
        for layer in model.layers:
            for name in ("qkv_weight", "o_weight", "gate_up_weight", "down_weight"):
                getattr(layer, name).copy_(getattr(layer, name).bfloat16())
        for matrix in (model.embedding, model.lm_head):
            matrix.copy_(matrix.bfloat16())
    native_model = NativeCausalLM.from_reference(model, "int8" if weights == "int8" else "none")
    for rank, name in zip((3, 20), ADAPTERS, strict=True):
        native_model.add_adapter(name, random_adapter(model.config, rank))
    return native_model


def random_adapter(config: ModelConfig, rank: int) -> LoraAdapter:
    generator = torch.Generator().manual_seed(rank)

    def matrices(projection: str) -> LoraMatrices:
        outputs, inputs = projection_sizes(config, projection)
        a, b = (torch.randn(shape, generator=generator) * 0.2 for shape in ((rank, inputs), (outputs, rank)))
        return LoraMatrices(a, b, 0.7)

    return LoraAdapter(tuple({name: matrices(name) for name in PROJECTIONS} for _ in range(config.num_layers)))


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8"])
def test_nothing_that_happens_around_a_request_changes_a_bit_of_its_answer(
    weights: str, record_property: Callable[[str, object], None]
) -> None:
    stand = Stand(model_of)

    @given(scenario=scenarios(list(FAMILIES), weights))
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    def play(scenario: Scenario) -> None:
        stand.play(scenario)

    play()
    record_property("exactness", dict(stand.counts))
    stand.require("preemptions", "recomputed", "chunks", "hits", "full hits", "hits within a block", "forks", "sampled")
