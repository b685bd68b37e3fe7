"""Adapters compute what peft computes; what is not plain LoRA for this model is refused, and says why."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from looseleaf.kernels import native
from looseleaf.models.config import ModelConfig
from looseleaf.models.errors import CorruptModelFile, InvalidAdapter, ModelNotFound, UnsupportedAdapter
from looseleaf.models.loader import load_model
from looseleaf.models.lora import CONFIG_FILE, WEIGHTS_FILE, load_lora
from looseleaf.models.native_decoder import NativeCausalLM
from tiny_adapter import write_adapter
from tiny_model import tiny_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own imports
    import peft

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SETTINGS: dict[str, dict[str, Any]] = {
    "all": {"r": 8, "lora_alpha": 16, "target_modules": ALL},
    "all-linear": {"r": 3, "lora_alpha": 6, "target_modules": "all-linear"},
    "query and value": {"r": 4, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]},
    "key and up": {"r": 5, "lora_alpha": 7, "target_modules": ["self_attn.k_proj", "up_proj"]},
    "some layers": {"r": 4, "lora_alpha": 8, "target_modules": ["o_proj", "gate_proj"], "layers_to_transform": [0, 2]},
    "one layer": {"r": 4, "lora_alpha": 8, "target_modules": ["down_proj"], "layers_to_transform": 1},
    "all but": {"r": 4, "lora_alpha": 8, "target_modules": ALL, "exclude_modules": ["model.layers.1.mlp.up_proj"]},
    "by name": {"r": 4, "lora_alpha": 8, "target_modules": ["model.layers.2.self_attn.q_proj", "1.mlp.down_proj"]},
    "expression": {"r": 4, "lora_alpha": 8, "target_modules": r"model\.layers\.[01]\..*\.(k_proj|gate_proj)"},
    "patterns": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ALL,
        "rank_pattern": {"layers.1.self_attn.q_proj": 2, "q_proj": 7, "^model.layers.0.mlp.up_proj": 33},
        "alpha_pattern": {r"mlp\.up_proj": 3, "v_proj": 1},
    },
    "rank-stabilised": {"r": 9, "lora_alpha": 2, "target_modules": ALL, "use_rslora": True},
}


@dataclass
class Trained:
    folder: Path
    logits: Callable[[list[int]], Tensor]


@pytest.fixture(scope="module")
def trained(checkpoint, tmp_path_factory) -> Callable[[str, str], Trained]:
    """A random adapter for a family's checkpoint, saved by peft, and the logits that peft has with it."""

    def make(family: str, name: str) -> Trained:
        config = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **SETTINGS[name])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
            model = peft.get_peft_model(copy.deepcopy(checkpoint(family).oracle), config).eval()
        generator = torch.Generator().manual_seed(len(name))
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "lora_" in parameter_name:
                    parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
        folder = tmp_path_factory.mktemp("adapter")
        model.save_pretrained(folder)

        def logits(tokens: list[int]) -> Tensor:
            with torch.inference_mode():
                return model(torch.tensor([tokens])).logits[0]

        return Trained(folder, logits)

    return make


def models_of(folder: Path) -> list[Any]:
    reference, _ = load_model(folder, torch.float32)
    return [reference, NativeCausalLM.from_reference(reference)] if native.is_available() else [reference]


CASES = [("llama3", name) for name in SETTINGS]
CASES += [(family, name) for family in ("llama-biases", "mistral", "qwen2", "qwen3") for name in ("all", "patterns")]


@pytest.mark.parametrize(("of_family", "name"), CASES)
def test_logits_and_greedy_tokens_are_those_of_peft(of_family, name, checkpoint, trained, paged_run, sequences):
    base, adapter = checkpoint(of_family), trained(of_family, name)
    for model in models_of(base.folder):
        model.add_adapter("it", load_lora(adapter.folder, model.config))
        every_second = ["it", None, "it", None]
        found = paged_run(model, sequences, adapters=every_second).run_whole()
        for tokens, logits, chosen in zip(sequences, found, every_second, strict=True):
            expected = (adapter if chosen else base).logits(tokens)
            torch.testing.assert_close(logits, expected, rtol=0, atol=2e-4)
        assert (found[2] - base.logits(sequences[2])).abs().max() > 0.05  # the adapter does something

        (generated,) = paged_run(model, [list(sequences[1])], room=8, adapters=["it"]).generate_greedily(8)
        tokens = list(sequences[1])
        for token in generated:
            assert token == int(adapter.logits(tokens)[-1].argmax())
            tokens.append(token)


@pytest.fixture
def shape() -> ModelConfig:
    return tiny_model().config


def test_an_adapter_takes_two_bytes_a_number_where_that_loses_nothing(shape, tmp_path):
    narrow = load_lora(write_adapter(tmp_path / "a", shape, dtype=torch.bfloat16), shape)
    wide = load_lora(write_adapter(tmp_path / "b", shape, dtype=torch.float16), shape)
    assert wide.nbytes == 2 * narrow.nbytes
    assert narrow.max_rank == 4
    for model in models_of_tiny():
        before = model.nbytes
        model.add_adapter("narrow", narrow)
        assert model.nbytes >= before + narrow.nbytes


def models_of_tiny() -> list[Any]:
    reference = tiny_model()
    return [reference, NativeCausalLM.from_reference(reference)] if native.is_available() else [reference]


NOT_SUPPORTED = {
    "use_dora": True,
    "bias": "all",
    "lora_bias": True,
    "modules_to_save": ["lm_head"],
    "fan_in_fan_out": True,
    "peft_type": "IA3",
    "use_qalora": True,
    "trainable_token_indices": [1, 2],
    "layer_replication": [[0, 1]],
    "target_parameters": ["experts"],
    "alora_invocation_tokens": [3],
    "megatron_config": {"a": 1},
    "init_lora_weights": "pissa_niter_4",
    "layers_pattern": "blocks",
    "something_new": {"on": True},
}


@pytest.mark.parametrize("name", NOT_SUPPORTED)
def test_what_changes_the_function_and_is_not_plain_lora_is_refused_by_name(name, shape, tmp_path):
    folder = write_adapter(tmp_path, shape, settings={name: NOT_SUPPORTED[name]})
    named = {"peft_type": "IA3", "bias": "biases"}.get(name, name)
    with pytest.raises(UnsupportedAdapter, match=named):
        load_lora(folder, shape)


def test_settings_that_say_nothing_are_passed_over(shape, tmp_path):
    off = {"use_dora": False, "something_new": None, "runtime_config": {"x": 1}, "init_lora_weights": "gaussian"}
    load_lora(write_adapter(tmp_path, shape, settings=off), shape)


NONSENSE: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no rank": ({"r": None}, InvalidAdapter, "r is None"),
    "rank 0": ({"r": 0}, InvalidAdapter, "r is 0"),
    "rank true": ({"r": True}, InvalidAdapter, "r is True"),
    "large rank": ({"r": 1 << 40}, InvalidAdapter, "from 1 to"),
    "alpha": ({"lora_alpha": "16"}, InvalidAdapter, "lora_alpha is '16'"),
    "endless alpha": ({"lora_alpha": 10**400}, InvalidAdapter, "finite"),
    "not a number": ({"lora_alpha": float("nan")}, InvalidAdapter, "finite"),
    "rslora": ({"use_rslora": "yes"}, InvalidAdapter, "use_rslora"),
    "no targets": ({"target_modules": None}, InvalidAdapter, "target_modules"),
    "empty targets": ({"target_modules": []}, InvalidAdapter, "target_modules"),
    "odd targets": ({"target_modules": [1]}, InvalidAdapter, "target_modules"),
    "unknown target": ({"target_modules": ["q_proj", "c_attn"]}, UnsupportedAdapter, "c_attn"),
    "output matrix": ({"target_modules": ["lm_head"]}, UnsupportedAdapter, "lm_head"),
    "embedding": ({"target_modules": ["embed_tokens"]}, UnsupportedAdapter, "embed_tokens"),
    "far target": ({"target_modules": ["model.layers.2.mlp.up_proj"]}, UnsupportedAdapter, "layers.2"),
    "far layer": ({"layers_to_transform": [0, 2]}, InvalidAdapter, "layer 2 of a model with 2"),
    "odd layer": ({"layers_to_transform": "first"}, InvalidAdapter, "'first'"),
    "pattern": ({"rank_pattern": [1]}, InvalidAdapter, "rank_pattern"),
    "expression": ({"rank_pattern": {"(q|k)_proj": 4}}, UnsupportedAdapter, "expression"),
    "pattern that begins a name": ({"alpha_pattern": {"^q_proj": 4}}, UnsupportedAdapter, "no module"),
    "pattern of nothing": ({"rank_pattern": {"q.proj": 4}}, UnsupportedAdapter, "no module"),
    "pattern's rank": ({"rank_pattern": {"q_proj": -1}}, InvalidAdapter, "q_proj"),
    "pattern's alpha": ({"alpha_pattern": {"q_proj": None}}, InvalidAdapter, "q_proj"),
    "excluded": ({"exclude_modules": [None]}, InvalidAdapter, "exclude_modules"),
    "another rank": ({"r": 5}, InvalidAdapter, r"\[4, 32\] where .* \[5, 32\]"),
    "one more target": ({"target_modules": ["q_proj", "up_proj", "o_proj"]}, InvalidAdapter, "missing: .*o_proj"),
    "one target less": ({"target_modules": ["q_proj"]}, InvalidAdapter, "up_proj"),
    "a layer less": ({"layers_to_transform": 0}, InvalidAdapter, "layers.1"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_a_configuration_that_makes_no_sense_is_refused(name, shape, tmp_path):
    settings, kind, message = NONSENSE[name]
    folder = write_adapter(tmp_path, shape, projections=["q_proj", "up_proj"], settings=settings)
    with pytest.raises(kind, match=message):
        load_lora(folder, shape)


QUERY = "base_model.model.model.layers.1.self_attn.q_proj"


def rename(old: str, new: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


BAD_TENSORS: dict[str, tuple[Callable[[dict[str, Tensor]], object], type[Exception], str]] = {
    "missing B": (lambda t: t.pop(f"{QUERY}.lora_B.weight"), InvalidAdapter, "missing: .*lora_B"),
    "nothing": (lambda t: t.clear(), InvalidAdapter, "missing"),
    "another shape": (
        lambda t: t.update({f"{QUERY}.lora_A.weight": torch.zeros(4, 31)}),
        InvalidAdapter,
        r"\[4, 31\] where .* \[4, 32\]",
    ),
    "transposed": (lambda t: t.update({f"{QUERY}.lora_B.weight": torch.zeros(4, 32)}), InvalidAdapter, r"\[4, 32\]"),
    "one dimension": (lambda t: t.update({f"{QUERY}.lora_A.weight": torch.zeros(4)}), InvalidAdapter, r"\[4\]"),
    "not a number": (lambda t: t[f"{QUERY}.lora_A.weight"].fill_(torch.nan), InvalidAdapter, "not finite: in .*lora_A"),
    "infinite": (lambda t: t[f"{QUERY}.lora_B.weight"][3, 1].fill_(torch.inf), InvalidAdapter, "not finite"),
    "too large": (
        lambda t: t.update({f"{QUERY}.lora_A.weight": torch.full((4, 32), 1e300, dtype=torch.float64)}),
        InvalidAdapter,
        "not finite",
    ),
    "integers": (
        lambda t: t.update({f"{QUERY}.lora_A.weight": torch.zeros(4, 32, dtype=torch.int8)}),
        UnsupportedAdapter,
        "I8",
    ),
    "DoRA": (lambda t: t.update({f"{QUERY}.lora_magnitude_vector": torch.ones(32)}), UnsupportedAdapter, "DoRA"),
    "bias": (lambda t: t.update({f"{QUERY}.lora_B.bias": torch.ones(32)}), UnsupportedAdapter, "biases"),
    "embedding": (
        lambda t: t.update({"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(4, 257)}),
        UnsupportedAdapter,
        "embedding",
    ),
    "output matrix": (
        lambda t: t.update({"base_model.model.lm_head.weight": torch.ones(257, 32)}),
        UnsupportedAdapter,
        "output matrix",
    ),
    "another layer": (
        rename(f"{QUERY}.lora_A.weight", f"{QUERY}.lora_A.weight".replace("layers.1", "layers.7")),
        InvalidAdapter,
        r"layers\.7",
    ),
    "another name": (rename(f"{QUERY}.lora_A.weight", "lora_A"), InvalidAdapter, "lora_A"),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_tensors_that_do_not_fit_are_refused(name, shape, tmp_path):
    change, kind, message = BAD_TENSORS[name]
    folder = write_adapter(tmp_path, shape, projections=["q_proj", "up_proj"], change=change)
    with pytest.raises(kind, match=message):
        load_lora(folder, shape)


def test_an_adapter_of_another_model_is_refused(shape, tmp_path):
    other = tiny_model(hidden_size=64, num_layers=2).config
    with pytest.raises(InvalidAdapter, match="does not fit the model") as refusal:
        load_lora(write_adapter(tmp_path, other), shape)
    assert "more" in str(refusal.value)


def test_files_that_are_absent_or_broken_are_named(shape, tmp_path):
    with pytest.raises(ModelNotFound, match="no adapter folder"):
        load_lora(tmp_path / "nowhere", shape)
    with pytest.raises(ModelNotFound, match=CONFIG_FILE):
        load_lora(tmp_path, shape)
    folder = write_adapter(tmp_path / "a", shape)
    content = (folder / WEIGHTS_FILE).read_bytes()
    for broken in (content[: len(content) // 2], b"", b"\xff" * 64):
        (folder / WEIGHTS_FILE).write_bytes(broken)
        with pytest.raises(CorruptModelFile, match=WEIGHTS_FILE):
            load_lora(folder, shape)
    (folder / WEIGHTS_FILE).unlink()
    with pytest.raises(ModelNotFound, match=f"no {WEIGHTS_FILE}"):
        load_lora(folder, shape)
    (folder / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(ModelNotFound, match="Pickled"):
        load_lora(folder, shape)
    (folder / CONFIG_FILE).write_text(json.dumps([]))
    with pytest.raises(CorruptModelFile, match="object"):
        load_lora(folder, shape)
