"""Checkpoints in safetensors: whole, in shards, and every way of being wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from looseleaf.errors import ModelError
from looseleaf.models.config import ModelConfig
from looseleaf.models.decoder import CausalLM
from looseleaf.models.errors import (
    CorruptModelFile,
    InvalidModelConfig,
    ModelNotFound,
    UnsupportedModel,
    WeightsMismatch,
)
from looseleaf.models.loader import load_config, load_model
from looseleaf.models.weights import destinations

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A private copy of a checkpoint with untied embeddings, free to be damaged."""
    return shutil.copytree(checkpoint("llama3").folder, tmp_path / "model")


@pytest.fixture
def sharded(checkpoint, tmp_path) -> Path:
    checkpoint("llama3").oracle.save_pretrained(tmp_path / "sharded", max_shard_size="60KB")
    return tmp_path / "sharded"


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace, add or (None) drop tensors; `__` stands for the dots of their names."""
    tensors = load_file(folder / SINGLE)
    for name, tensor in changes.items():
        key = name.replace("__", ".")
        if tensor is None:
            del tensors[key]
        else:
            tensors[key] = tensor
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})


def reconfigure(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def load(folder: Path) -> tuple[CausalLM, ModelConfig]:
    return load_model(folder, torch.float32)


def assert_same_weights(one: CausalLM, other: CausalLM) -> None:
    ours, theirs = destinations(one), destinations(other)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_every_parameter_of_the_checkpoint_arrives_unchanged(family, checkpoint):
    reference = checkpoint(family)
    loaded = destinations(load(reference.folder)[0])
    parameters = dict(reference.oracle.named_parameters())
    assert loaded.keys() == parameters.keys()
    assert all(torch.equal(loaded[name], parameters[name]) for name in loaded)


def test_the_joined_weights_have_no_part_that_the_checkpoint_does_not_fill(family, checkpoint):
    model, _ = load(checkpoint(family).folder)
    held = {model.embedding.data_ptr(): model.embedding, model.lm_head.data_ptr(): model.lm_head, 0: model.norm}
    for layer in model.layers:
        tensors = [getattr(layer, name) for name in layer.__slots__]
        held |= {tensor.data_ptr(): tensor for tensor in tensors if isinstance(tensor, torch.Tensor)}
    assert sum(t.numel() for t in held.values()) == sum(t.numel() for t in destinations(model).values())


def test_shards_give_the_same_weights_as_one_file(folder, sharded):
    assert len(list(sharded.glob("*.safetensors"))) > 3
    assert_same_weights(load(folder)[0], load(sharded)[0])


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("wanted", [torch.bfloat16, torch.float32])
def test_weights_are_converted_from_the_stored_type_to_the_wanted_one(folder, stored, wanted):
    tensors = {name: tensor.to(stored) for name, tensor in load_file(folder / SINGLE).items()}
    save_file(tensors, folder / SINGLE)
    loaded = destinations(load_model(folder, wanted)[0])
    assert all(torch.equal(loaded[name], tensors[name].to(wanted)) for name in tensors)


def test_a_tied_checkpoint_may_repeat_its_embedding_and_old_ones_hold_rotary_frequencies(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint("smollm2").folder, tmp_path / "model")
    rewrite(
        folder,
        lm_head__weight=torch.zeros(96, 64),
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8),
    )
    assert_same_weights(load(folder)[0], load(checkpoint("smollm2").folder)[0])


def test_missing_and_unexpected_tensors_are_named(folder):
    rewrite(
        folder,
        model__layers__1__mlp__up_proj__weight=None,
        model__layers__0__self_attn__q_proj__bias=torch.zeros(64),
    )
    with pytest.raises(WeightsMismatch) as error:
        load(folder)
    assert "missing: model.layers.1.mlp.up_proj.weight" in str(error.value)
    assert "unexpected: model.layers.0.self_attn.q_proj.bias" in str(error.value)


def test_an_untied_checkpoint_without_its_output_matrix_is_refused(folder):
    rewrite(folder, lm_head__weight=None)
    with pytest.raises(WeightsMismatch, match=r"missing: lm_head\.weight"):
        load(folder)


@pytest.mark.parametrize(
    ("lie", "tensor"),
    [
        ({"hidden_size": 128}, "model.embed_tokens.weight is [96, 64] where the configuration makes it [96, 128]"),
        ({"intermediate_size": 100}, "mlp.gate_proj.weight is [96, 64] where the configuration makes it [100, 64]"),
        ({"vocab_size": 97}, "model.embed_tokens.weight is [96, 64] where the configuration makes it [97, 64]"),
        ({"num_key_value_heads": 4}, "k_proj.weight is [32, 64] where the configuration makes it [64, 64]"),
        ({"num_hidden_layers": 4}, "missing: model.layers.3."),
        ({"num_hidden_layers": 2}, "unexpected: model.layers.2."),
        ({"attention_bias": True}, "missing: model.layers.0.self_attn.k_proj.bias"),
        ({"architectures": ["Qwen3ForCausalLM"], "head_dim": 16}, "missing: model.layers.0.self_attn.k_norm.weight"),
    ],
)
def test_a_configuration_that_lies_about_shapes_is_refused_with_both_shapes(folder, lie, tensor):
    reconfigure(folder, **lie)
    with pytest.raises(WeightsMismatch) as error:
        load(folder)
    assert tensor in str(error.value)


def test_a_lie_is_found_before_any_memory_is_taken(folder):
    """Nobody has a machine for these weights: allocating them first would fail in another way."""
    reconfigure(folder, vocab_size=1 << 24, hidden_size=1 << 20, intermediate_size=1 << 22)
    with pytest.raises(WeightsMismatch):
        load(folder)


def test_an_unknown_architecture_is_refused_before_the_weights_are_looked_at(folder):
    reconfigure(folder, architectures=["GPT2LMHeadModel"])
    (folder / SINGLE).unlink()
    with pytest.raises(UnsupportedModel, match=r"GPT2LMHeadModel.*LlamaForCausalLM"):
        load(folder)


def test_an_absurd_configuration_is_refused(folder):
    reconfigure(folder, num_attention_heads=0)
    with pytest.raises(InvalidModelConfig, match="num_attention_heads is 0"):
        load(folder)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '"text"', "nul", "\x00\x01", "[" * 100_000])
def test_a_configuration_that_is_not_a_json_object_is_refused(folder, content):
    (folder / "config.json").write_text(content)
    with pytest.raises(CorruptModelFile, match=r"config\.json"):
        load(folder)


def test_a_configuration_that_is_not_text_is_refused(folder):
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CorruptModelFile, match=r"config\.json"):
        load(folder)


def test_what_is_not_a_model_is_refused(tmp_path):
    with pytest.raises(ModelNotFound, match="no file or folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(ModelNotFound, match="not a model folder"):
        load(tmp_path)
    with pytest.raises(ModelNotFound, match="not a model folder"):
        load_config(tmp_path)


def test_a_folder_without_weights_is_refused_and_pickled_ones_are_not_read(folder):
    (folder / SINGLE).unlink()
    with pytest.raises(ModelNotFound, match=r"no model\.safetensors"):
        load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelNotFound, match="Pickled"):
        load(folder)


def test_an_absent_shard_is_named(sharded):
    lost = sorted(sharded.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ModelNotFound, match=lost.name):
        load(sharded)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}, {"weight_map": {"a": "../b"}}])
def test_a_damaged_index_is_refused(sharded, index):
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(CorruptModelFile, match="index"):
        load(sharded)


def test_a_tensor_in_two_shards_is_refused(sharded):
    first, second, *_ = sorted(sharded.glob("*.safetensors"))
    save_file(load_file(first) | load_file(second), second)
    with pytest.raises(CorruptModelFile, match="is in both"):
        load(sharded)


@pytest.mark.parametrize("stored", [torch.int32, torch.float8_e4m3fn])
def test_weights_that_are_not_plain_floating_point_are_refused(folder, stored):
    rewrite(folder, model__norm__weight=torch.ones(64).to(stored))
    with pytest.raises(UnsupportedModel, match=r"model\.norm\.weight is stored as"):
        load(folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8, torch.float64])
def test_an_unsupported_dtype_is_refused(folder, dtype):
    with pytest.raises(UnsupportedModel, match="float32, bfloat16"):
        load_model(folder, dtype)


@given(kept=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_truncation_is_noticed(checkpoint, tmp_path, kept):
    whole = (checkpoint("llama3").folder / SINGLE).read_bytes()
    shutil.copy(checkpoint("llama3").folder / "config.json", tmp_path)
    (tmp_path / SINGLE).write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(CorruptModelFile, match=r"model\.safetensors"):
        load(tmp_path)


@given(position=st.integers(0, 4000), value=st.integers(0, 255))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_in_the_header_is_read_or_refused(checkpoint, tmp_path, position, value):
    content = bytearray((checkpoint("llama3").folder / SINGLE).read_bytes())
    shutil.copy(checkpoint("llama3").folder / "config.json", tmp_path)
    content[position] = value
    (tmp_path / SINGLE).write_bytes(content)
    try:
        model, _ = load(tmp_path)
    except ModelError:
        return
    assert isinstance(model, CausalLM)
