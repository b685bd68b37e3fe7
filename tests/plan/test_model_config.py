"""Which configurations are read, how, and which are refused."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.errors import LooseleafError
from looseleaf.plan.arithmetic import ModelArithmetic
from looseleaf.plan.errors import InvalidModelShape, InvalidPlan, UnknownArchitecture, UnknownModelName
from looseleaf.plan.known_models import find_model, known_models
from looseleaf.plan.kv_layout import KVLayout
from looseleaf.plan.model_config import load_model, read_model
from looseleaf.plan.shape import Attention

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
}


def windows(**changed: Any) -> list[int | None]:
    shape = read_model({key: value for key, value in {**LLAMA, **changed}.items() if value is not ...})
    return [mixer.limit for mixer in shape.mixers() if isinstance(mixer, Attention)]


@pytest.mark.parametrize(
    "changed",
    [
        {"model_type": "mamba3", "architectures": ["Mamba3ForCausalLM"]},
        {"architectures": ["LlamaWithSurprisesForCausalLM"]},
        {"model_type": "rwkv7"},
        {"model_type": None},
        {"model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "moe_latent_size": 128},
    ],
)
def test_what_is_not_known_is_refused_by_name(changed: dict[str, Any]) -> None:
    named = changed.get("model_type") or ""
    with pytest.raises(UnknownArchitecture) as caught:
        read_model({**LLAMA, **changed}, name="acme/model")
    assert "acme/model" in str(caught.value)
    assert named == "nemotron_h" or str(named or changed.get("architectures", [""])[0])[:10] in str(caught.value)
    assert "need" in caught.value.hint or "config.json" in caught.value.hint


@pytest.mark.parametrize(
    "changed",
    [
        {"hidden_size": ...},
        {"num_attention_heads": 0},
        {"num_attention_heads": 4.5},
        {"num_attention_heads": True},
        {"num_key_value_heads": 3},
        {"hidden_size": 66},
        {"vocab_size": "many"},
        {"vocab_size": 10**30},
        {"num_hidden_layers": 10**9},
        {"torch_dtype": "int3"},
        {"architectures": "LlamaForCausalLM"},
        {"architectures": []},
        {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "layer_types": ["full_attention"]},
        {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "layer_types": ["odd_attention"] * 4},
    ],
)
def test_numbers_that_are_missing_or_wrong_are_named(changed: dict[str, Any]) -> None:
    values = {key: value for key, value in {**LLAMA, **changed}.items() if value is not ...}
    with pytest.raises(InvalidModelShape) as caught:
        read_model(values)
    assert caught.value.hint


def test_windows_count_where_they_are_switched_on() -> None:
    qwen = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "sliding_window": 64}
    assert windows(**qwen) == [None] * 4
    assert windows(**qwen, use_sliding_window=True, max_window_layers=3) == [None, None, None, 64]
    mistral = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "max_position_embeddings": 8192}
    assert windows(**mistral, sliding_window=64) == [64] * 4
    assert windows(**mistral, sliding_window=None) == [None] * 4
    assert windows(**mistral) == [4096] * 4  # what the architecture means by saying nothing
    assert windows(sliding_window=64) == [None] * 4  # Llama has none
    phi = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "max_position_embeddings": 4096}
    assert windows(**phi, sliding_window=2047) == [2047] * 4
    assert windows(**phi, sliding_window=262_144) == [None] * 4  # longer than any sequence
    gemma = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 16, "sliding_window": 64}
    assert windows(**gemma) == [64, None, 64, None]
    gemma3 = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 7}
    assert windows(**gemma3, sliding_window=64) == [64] * 5 + [None, 64]


def test_the_text_model_may_be_a_part() -> None:
    inner = {key: value for key, value in LLAMA.items() if key not in ("architectures", "torch_dtype")}
    whole = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "torch_dtype": "float16",
        "vision_config": {"model_type": "pixtral"},
        "text_config": {**inner, "model_type": "mistral", "sliding_window": None},
    }
    shape = read_model(whole)
    assert shape.dtype == "float16"
    assert KVLayout(ModelArithmetic(shape)).slope == 4 * 2 * 2 * 16 * 2
    assert any("vision" in note for note in shape.notes)


def test_layers_of_an_architecture_search_must_be_plain() -> None:
    block = {"attention": {"no_op": False, "n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.5}}
    nas = {**LLAMA, "architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "num_key_value_heads": None}
    none = {"attention": {"no_op": True}, "ffn": {"no_op": True}}
    shape = read_model({**nas, "block_configs": [block, none, block, none]})
    assert ModelArithmetic(shape).kv_bytes_per_token == 2 * 2 * 2 * 16 * 2
    for key, value in {"window_length": 128, "replace_with_linear": True, "num_sink_tokens": 4}.items():
        odd = copy.deepcopy(block)
        odd["attention"][key] = value
        with pytest.raises(UnknownArchitecture, match=key):
            read_model({**nas, "block_configs": [block, block, odd, block]})


def test_unknown_quantisation_is_refused_unless_overruled() -> None:
    shape = read_model({**LLAMA, "quantization_config": {"quant_method": "secret"}})
    with pytest.raises(InvalidPlan, match="secret"):
        ModelArithmetic(shape)
    assert ModelArithmetic(shape, quantization="int8").weight_bytes > 0


@pytest.mark.parametrize(
    ("config", "form"),
    [
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8"),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}},
            },
            "int8",
        ),
    ],
)
def test_the_checkpoints_format_is_read(config: dict[str, Any], form: str) -> None:
    arithmetic = ModelArithmetic(read_model({**LLAMA, "quantization_config": config}))
    assert (arithmetic.formats["attention"], arithmetic.formats["mlp"]) == (form, form)
    assert arithmetic.formats["embedding"] == "bfloat16"
    assert arithmetic.kv_format.name == ("fp8" if "kv_cache_quant_algo" in config else "bfloat16")


def test_files_and_names(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert load_model(folder).name == find_model(str(folder / "config.json")).name == "llama"
    (folder / "broken.json").write_text("{")
    with pytest.raises(InvalidModelShape, match="not JSON"):
        load_model(folder / "broken.json")
    (folder / "list.json").write_text("[]")
    with pytest.raises(InvalidModelShape, match="not an object"):
        load_model(folder / "list.json")
    with pytest.raises(UnknownModelName):
        load_model(folder / "absent.json")
    with pytest.raises(UnknownModelName, match=r"llama-3\.1-8b"):
        find_model("lama-3.1-8b")
    assert find_model("LLAMA-3.1-8B").name == find_model("meta-llama/Llama-3.1-8B").name


def test_every_known_name_is_read() -> None:
    for name in known_models():
        assert ModelArithmetic(find_model(name)).parameters.total > 10**8


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300)
@given(st.data())
def test_a_damaged_configuration_is_read_or_refused_with_a_typed_error(data: st.DataObject) -> None:
    values = copy.deepcopy(dict(known_models()[data.draw(st.sampled_from(sorted(known_models())))]))
    part = values.get("text_config", values)
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from(sorted(part)))
        part[key] = data.draw(JSON)
    with suppress(LooseleafError):
        arithmetic = ModelArithmetic(read_model(values))
        assert arithmetic.weight_bytes > 0
        assert KVLayout(arithmetic).request_bytes(100) > 0
