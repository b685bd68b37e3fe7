"""Configurations: as published, in both spellings, and refused when they cannot be right."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.errors import ModelError
from looseleaf.models.config import ModelConfig
from looseleaf.models.errors import InvalidModelConfig, UnsupportedModel
from looseleaf.models.hf_config import config_from_hf
from looseleaf.models.registry import FAMILIES
from looseleaf.models.rope import LinearScaling, Llama3Scaling, YarnScaling

LLAMA_31_8B = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
QWEN2_7B = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
MISTRAL = {**LLAMA_31_8B, "architectures": ["MistralForCausalLM"], "rope_scaling": None}


def test_llama_31_is_read_as_published():
    config = config_from_hf(LLAMA_31_8B)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (32, 8, 128)
    assert config.rope_theta == 500_000
    assert config.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    assert config.eos_token_ids == (128001, 128008, 128009)
    assert config.sliding_windows == (None,) * 32
    assert not any((config.qkv_bias, config.attention_output_bias, config.mlp_bias, config.qk_norm))


def test_kv_bytes_per_token_are_the_published_figures():
    assert config_from_hf(LLAMA_31_8B).kv_bytes_per_token(torch.bfloat16) == 131_072
    assert config_from_hf(QWEN2_7B).kv_bytes_per_token(torch.bfloat16) == 57_344
    assert config_from_hf(QWEN2_7B).kv_bytes_per_token(torch.float32) == 114_688


def test_a_switched_off_window_of_qwen_is_inert_and_its_biases_are_on_queries_keys_and_values_only():
    config = config_from_hf(QWEN2_7B)
    assert config.sliding_windows == (None,) * 28
    assert config.qkv_bias
    assert not config.attention_output_bias
    windowed = config_from_hf({**QWEN2_7B, "use_sliding_window": True, "max_window_layers": 21, "sliding_window": 512})
    assert windowed.sliding_windows == (None,) * 21 + (512,) * 7


def test_mistral_has_a_window_unless_it_says_that_it_has_none():
    assert config_from_hf(MISTRAL).sliding_windows == (4096,) * 32
    assert config_from_hf({**MISTRAL, "sliding_window": 7}).sliding_windows == (7,) * 32
    assert config_from_hf({**MISTRAL, "sliding_window": None}).sliding_windows == (None,) * 32


def test_layer_types_decide_where_they_are_given():
    kinds = ["sliding_attention", "full_attention"] * 16
    config = config_from_hf({**MISTRAL, "sliding_window": 7, "layer_types": kinds})
    assert config.sliding_windows == (7, None) * 16
    with pytest.raises(UnsupportedModel, match="linear_attention"):
        config_from_hf({**MISTRAL, "layer_types": ["linear_attention"] * 32})
    with pytest.raises(InvalidModelConfig, match="3 layers"):
        config_from_hf({**MISTRAL, "layer_types": kinds[:3]})


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (None, None),
        ({"rope_type": "default"}, None),
        ({"type": "dynamic", "factor": 2.0}, None),
        ({"type": "linear", "factor": 2.0}, LinearScaling(2.0)),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 4.0),
    ],
)
def test_the_older_and_the_newer_spelling_of_rotary_scaling_mean_the_same(scaling, expected):
    older = config_from_hf({**QWEN2_7B, "rope_theta": 7000.0, "rope_scaling": scaling})
    newer_raw = {key: value for key, value in QWEN2_7B.items() if key != "rope_theta"}
    newer = config_from_hf({**newer_raw, "rope_parameters": {**(scaling or {}), "rope_theta": 7000.0}})
    assert older == newer
    assert older.rope_theta == 7000
    if expected == 4.0:
        assert isinstance(older.rope_scaling, YarnScaling)
        assert older.rope_scaling.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    else:
        assert older.rope_scaling == expected


def test_an_unknown_architecture_is_refused_by_name_with_the_known_ones():
    with pytest.raises(UnsupportedModel, match="'MixtralForCausalLM'") as refusal:
        config_from_hf({**LLAMA_31_8B, "architectures": ["MixtralForCausalLM"]})
    assert all(family.architecture in str(refusal.value) for family in FAMILIES)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_act": "gelu"}, "gelu"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}}, "mscale"),
        ({"partial_rotary_factor": 0.5}, "0.5"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(change, named):
    with pytest.raises(UnsupportedModel, match=named):
        config_from_hf({**LLAMA_31_8B, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 0},
        {"hidden_size": -4096},
        {"hidden_size": "4096"},
        {"hidden_size": 4097},
        {"hidden_size": None},
        {"num_attention_heads": 0},
        {"num_attention_heads": 31},
        {"num_key_value_heads": 5},
        {"num_key_value_heads": 0},
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": True},
        {"head_dim": 127},
        {"head_dim": 0},
        {"max_position_embeddings": 10**15},
        {"rms_norm_eps": math.nan},
        {"rms_norm_eps": 0.0},
        {"rope_theta": math.inf},
        {"rope_theta": -1.0},
        {"rope_theta": 10**400},
        {"rms_norm_eps": 10**400},
        {"hidden_size": 10**400},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_scaling": {**LLAMA_31_8B["rope_scaling"], "low_freq_factor": 4.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 0.0}},
        {"rope_scaling": "linear"},
        {"architectures": []},
        {"architectures": None},
        {"eos_token_id": 128256},
        {"eos_token_id": [1, "2"]},
        {"bos_token_id": -1},
        {"attention_bias": 1},
    ],
)
def test_numbers_that_make_no_sense_are_refused(change):
    with pytest.raises(InvalidModelConfig):
        config_from_hf({**LLAMA_31_8B, **change})


def test_a_window_of_zero_is_refused():
    with pytest.raises(InvalidModelConfig, match="window"):
        config_from_hf({**MISTRAL, "sliding_window": 0})


_SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
_JSON = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


@given(key=st.sampled_from(sorted(LLAMA_31_8B)), value=_JSON, base=st.sampled_from([LLAMA_31_8B, QWEN2_7B, MISTRAL]))
@settings(max_examples=300, deadline=None)
def test_whatever_stands_in_a_configuration_it_is_read_or_refused(key, value, base):
    try:
        config = config_from_hf({**base, key: value})
    except ModelError:
        return
    assert isinstance(config, ModelConfig)


def _published_configs() -> list[Path]:
    shared = Path(os.environ.get("LOOSELEAF_SHARED", Path(__file__).parents[3] / "shared"))
    return sorted((shared / "model_configs").glob("*.json"))


@pytest.mark.skipif(not _published_configs(), reason="published configurations not found (set LOOSELEAF_SHARED)")
def test_published_configurations_are_read_as_transformers_reads_them_or_refused_by_name():
    known = {family.architecture for family in FAMILIES}
    read = 0
    for path in _published_configs():
        raw = json.loads(path.read_text())
        if raw["architectures"][0] not in known:
            with pytest.raises(UnsupportedModel, match=raw["architectures"][0]):
                config_from_hf(raw)
            continue
        config = config_from_hf(raw)
        oracle = transformers.AutoConfig.for_model(**raw)
        head_dim = getattr(oracle, "head_dim", None) or oracle.hidden_size // oracle.num_attention_heads
        assert (config.head_dim, config.num_kv_heads) == (head_dim, oracle.num_key_value_heads), path.name
        assert config.rope_theta == oracle.rope_parameters["rope_theta"], path.name
        assert set(config.sliding_windows) == {getattr(oracle, "sliding_window", None)}, path.name
        assert config.tie_word_embeddings == oracle.tie_word_embeddings, path.name
        read += 1
    assert read >= 10
