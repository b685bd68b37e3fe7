"""For one model, dtype and seed, tokens and logprobs are the same bits: alone or in company, in one chunk or many, cold
or from the prefix cache, preempted and recomputed, forked or a request of its own, on one thread or two."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from exactness import Stand
from looseleaf.kernels import native
from looseleaf.kernels.linear import pack_gguf, pack_gguf_gate_up
from looseleaf.models.config import ModelConfig
from looseleaf.models.decoder import CausalLM
from looseleaf.models.interface import Decoder
from looseleaf.models.loader import load_decoder_and_tokenizer
from looseleaf.models.lora import LoraAdapter, LoraMatrices
from looseleaf.models.lora_config import PROJECTIONS
from looseleaf.models.native_decoder import NativeCausalLM
from looseleaf.models.rope import Llama3Scaling
from serving_scenario import ADAPTERS, Scenario, scenarios, staged
from tiny_adapter import projection_sizes
from tiny_model import tiny_model

native_only = pytest.mark.skipif(not native.is_chosen(), reason="the native kernels promise it; they are not there")

FEW = 25
EXAMPLES = int(os.environ.get("LOOSELEAF_EXACTNESS_EXAMPLES", FEW))
"""Scenarios for each of WEIGHTS; CONTRIBUTING.md says how to run many."""

WEIGHTS = {"float32": ("float32",), "bfloat16": ("bfloat16",), "quantised": ("int8", "Q4_1")}
STAGED = ("preemptions", "recomputed in part", "chunks", "full hits", "hits within a block", "forks", "block copies")
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": Llama3Scaling(8.0, 1.0, 4.0, 64)},
    "llama-biases": {"num_kv_heads": 1, "qkv_bias": True, "attention_output_bias": True, "mlp_bias": True},
    "smollm2": {"num_heads": 3, "num_kv_heads": 1, "head_dim": 32, "hidden_size": 96, "tie_word_embeddings": True},
    "mistral": {"sliding_windows": (70, 70)},
    "qwen2": {"num_kv_heads": 4, "qkv_bias": True, "sliding_windows": (None, 300), "tie_word_embeddings": True},
    "qwen3": {"head_dim": 32, "qk_norm": True},
}


def model_of(family: str, weights: str) -> Decoder:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "max_position_embeddings": 1024}
    reference = tiny_model(**(sizes | FAMILIES[family]))
    if weights == "bfloat16":
        for matrix in matrices_of(reference):
            matrix.copy_(matrix.bfloat16())
    model: Decoder = reference
    if native.is_chosen():
        model = NativeCausalLM.from_reference(reference, "int8" if weights == "int8" else "none")
        if weights == "Q4_1":
            four_bits(model, reference)
    for rank, name in zip((3, 20), ADAPTERS, strict=True):
        model.add_adapter(name, random_adapter(reference.config, rank))
    return model


def matrices_of(model: CausalLM) -> list[torch.Tensor]:
    names = ("qkv_weight", "o_weight", "gate_up_weight", "down_weight")
    return [getattr(layer, name) for layer in model.layers for name in names] + [model.embedding, model.lm_head]


def four_bits(model: NativeCausalLM, reference: CausalLM) -> None:
    """Replace the matrices by blocks as a GGUF file holds them; of a pair with biases, which such files lack, not."""

    def blocks(weight: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType.Q4_1))

    for index, layer in enumerate(reference.layers):
        for name, weight, bias in (
            ("qkv", layer.qkv_weight, layer.qkv_bias),
            ("o", layer.o_weight, layer.o_bias),
            ("down", layer.down_weight, layer.down_bias),
        ):
            model.set_linear(index, name, pack_gguf(blocks(weight), "Q4_1", weight.shape[1], bias))
        if layer.gate_up_bias is None:
            gate, up = (blocks(half) for half in layer.gate_up_weight.chunk(2))
            model.set_linear(index, "gate_up", pack_gguf_gate_up(gate, up, "Q4_1", layer.gate_up_weight.shape[1]))


def random_adapter(config: ModelConfig, rank: int) -> LoraAdapter:
    generator = torch.Generator().manual_seed(rank)

    def matrices(projection: str) -> LoraMatrices:
        outputs, inputs = projection_sizes(config, projection)
        a, b = (torch.randn(shape, generator=generator) * 0.2 for shape in ((rank, inputs), (outputs, rank)))
        return LoraMatrices(a, b, 0.7)

    return LoraAdapter(tuple({name: matrices(name) for name in PROJECTIONS} for _ in range(config.num_layers)))


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
@native_only
def test_nothing_that_happens_around_a_request_changes_a_bit_of_its_answer(
    weights: tuple[str, ...], record_property: Callable[[str, object], None]
) -> None:
    stand = Stand(model_of)
    play_drawn(stand, scenarios(list(FAMILIES), weights), EXAMPLES)
    record_property("exactness", dict(stand.counts))
    if EXAMPLES >= FEW:
        stand.require("preemptions", "chunks", "hits", "full hits", "hits within a block", "forks", "sampled", "beams")


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
@native_only
def test_every_family_and_cache_keeps_its_bits(
    family: str, kv_dtype: str, record_property: Callable[[str, object], None]
) -> None:
    stand = Stand(model_of)
    stand.play(staged(family, "bfloat16", kv_dtype))
    record_property("exactness", dict(stand.counts))
    stand.require(*STAGED, "aborts", "beams")
    if family != "mistral":  # whose window makes each row's positions its own
        stand.require("cascaded rows")


@native_only
def test_the_default_model_keeps_its_bits(smollm2_gguf: Path, record_property: Callable[[str, object], None]) -> None:
    path = smollm2_gguf
    tokenizer = load_decoder_and_tokenizer(path, torch.bfloat16)[1]

    def model_of(_: str, weights: str) -> Decoder:
        dtype = torch.float32 if weights == "float32" else torch.bfloat16
        quantization = {"int8": "int8", "Q4_1": "gguf"}.get(weights, "none")
        return load_decoder_and_tokenizer(path, dtype, quantization)[0]

    stand = Stand(model_of, tokenizer)
    stand.play(staged("smollm2", "bfloat16", "bfloat16", brief=True))
    stand.require(*STAGED, "cascaded rows")
    if FEW < EXAMPLES:
        drawn = scenarios(["smollm2"], ["float32", "bfloat16", "int8", "Q4_1"], most=4)
        play_drawn(stand, drawn.map(without_adapters), EXAMPLES // 30)
    record_property("exactness", dict(stand.counts))


def test_the_reference_kernels_keep_them_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a float32 cache: where rounding decides which number a narrower one holds, it shows further up."""
    monkeypatch.setenv(native.KERNELS_VARIABLE, "reference")
    stand = Stand(model_of)
    drawn = scenarios(list(FAMILIES), ["float32"], most=4, long=False)
    play_drawn(stand, drawn.map(with_float32_cache), max(1, EXAMPLES // 8))
    stand.require("samples")


def play_drawn(stand: Stand, drawn: st.SearchStrategy[Scenario], count: int) -> None:
    """`count` scenarios: the same ones in each run of a few, others in each run of many."""

    @given(scenario=drawn)
    @settings(max_examples=count, suppress_health_check=list(HealthCheck), database=None)
    def play(scenario: Scenario) -> None:
        stand.play(scenario)

    (seed(1)(play) if EXAMPLES <= FEW else play)()


def with_float32_cache(scenario: Scenario) -> Scenario:
    return replace(scenario, settings=scenario.settings | {"kv_cache_dtype": "float32"})


def without_adapters(scenario: Scenario) -> Scenario:
    """And on the best instruction set: the portable one takes too long with a model of any size."""
    plain = tuple(replace(arrival, adapter=None) for arrival in scenario.arrivals)
    return replace(scenario, isa=0, arrivals=plain)
