"""Reads the `adapter_config.json` that peft writes beside a LoRA adapter's weights."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from looseleaf.models.errors import InvalidAdapter, UnsupportedAdapter

Number = TypeVar("Number", int, float)

PROJECTIONS: Mapping[str, str] = MappingProxyType(
    {
        "q_proj": "self_attn",
        "k_proj": "self_attn",
        "v_proj": "self_attn",
        "o_proj": "self_attn",
        "gate_proj": "mlp",
        "up_proj": "mlp",
        "down_proj": "mlp",
    }
)
"""The matrices of a layer that can be adapted, and the part of it that they belong to."""

MAX_RANK = 1 << 14

# How the adapter was trained, or where from: nothing here changes what it computes.
_HARMLESS = {
    "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "eva_config", "inference_mode", "loftq_config",
    "lora_dropout", "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config", "task_type",
}  # fmt: skip
_READ = {
    "alpha_pattern", "bias", "exclude_modules", "init_lora_weights", "layers_pattern", "layers_to_transform",
    "lora_alpha", "peft_type", "r", "rank_pattern", "target_modules", "use_rslora",
}  # fmt: skip
# The others (pissa, olora, corda, loftq, …) take their first values out of the base model's weights.
_INITS_THAT_LEAVE_THE_BASE_ALONE = (True, False, "gaussian", "eva", "orthogonal")
_NAME = re.compile(r"\w+(\.\w+)*")


def module_name(layer: int, projection: str) -> str:
    """What Hugging Face's models call a matrix: "model.layers.3.self_attn.q_proj"."""
    return f"model.layers.{layer}.{PROJECTIONS[projection]}.{projection}"


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """What an adapter's configuration says about the modules of a model."""

    rank: int
    alpha: float
    rank_pattern: Mapping[str, int]
    """By the end of a module's name; the first that fits counts."""
    alpha_pattern: Mapping[str, float]
    rank_stabilised: bool
    targets: frozenset[str] | None
    """Ends of module names; None: whatever the tensors are for (all linear layers, or those of an expression)."""
    excluded: frozenset[str]
    layers: frozenset[int] | None
    """None: all."""

    def rank_of(self, module: str) -> int:
        return _by_pattern(self.rank_pattern, module, self.rank)

    def scaling_of(self, module: str) -> float:
        """alpha / rank; of a rank-stabilised adapter alpha / √rank (Kalajdzievski 2023, arXiv:2312.03732)."""
        rank, alpha = self.rank_of(module), _by_pattern(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.rank_stabilised else rank)

    def may_adapt(self, module: str, layer: int) -> bool:
        """Whether the adapter may have weights for `module`, "model.layers.3.self_attn.q_proj", of `layer`."""
        endings = _endings(module)
        if not self.excluded.isdisjoint(endings):
            return False
        if self.targets is None:
            return True
        return not self.targets.isdisjoint(endings) and (self.layers is None or layer in self.layers)

    def must_adapt(self, module: str, layer: int) -> bool:
        """Whether the adapter lacks something without them."""
        return self.targets is not None and self.may_adapt(module, layer)


def read_lora_config(raw: Mapping[str, Any], num_layers: int) -> LoraConfig:
    """Raises `UnsupportedAdapter`, which names what is not supported, or `InvalidAdapter`."""
    if raw.get("peft_type") != "LORA":
        raise UnsupportedAdapter(f"Adapters of the type {raw.get('peft_type')!r} are not supported.", hint="Use LORA.")
    _refuse_unsupported(raw)
    layers = _layers(raw, num_layers)
    targets = _targets(raw, num_layers)
    excluded = raw.get("exclude_modules") or []
    if isinstance(excluded, str):
        targets, excluded = None, []  # an expression: the tensors show what it leaves
    return LoraConfig(
        rank=_rank(raw.get("r"), "r"),
        alpha=_number(raw.get("lora_alpha"), "lora_alpha"),
        rank_pattern={
            name: _rank(value, f"rank_pattern[{name!r}]") for name, value in _pattern(raw, "rank_pattern", num_layers)
        },
        alpha_pattern={
            name: _number(value, f"alpha_pattern[{name!r}]")
            for name, value in _pattern(raw, "alpha_pattern", num_layers)
        },
        rank_stabilised=_flag(raw, "use_rslora"),
        targets=targets,
        excluded=_names(excluded, "exclude_modules"),
        layers=layers,
    )


def _refuse_unsupported(raw: Mapping[str, Any]) -> None:
    if raw.get("bias", "none") != "none":
        raise UnsupportedAdapter(f"The adapter trains biases (bias is {raw['bias']!r}), which is not supported.")
    init = raw.get("init_lora_weights", True)
    if init not in _INITS_THAT_LEAVE_THE_BASE_ALONE:
        raise UnsupportedAdapter(
            f"init_lora_weights is {init!r}: such an adapter may belong to a changed copy of the base model.",
            hint="Convert it to a plain one when saving it (peft's path_initial_model_for_weight_conversion).",
        )
    if raw.get("layers_pattern") not in (None, "", [], "layers", ["layers"]):
        raise UnsupportedAdapter(f"layers_pattern is {raw['layers_pattern']!r}; only 'layers' is known.")
    for name, value in raw.items():
        # Settings that are unknown, and those known to change the result, are off as long as they say nothing.
        if name not in _HARMLESS | _READ and value not in (None, False, [], {}, "", 0):
            raise UnsupportedAdapter(
                f"The adapter's setting {name} ({value!r:.60}) is not supported.",
                hint="Plain LoRA on the attention and MLP projections is.",
            )


def _targets(raw: Mapping[str, Any], num_layers: int) -> frozenset[str] | None:
    given = raw.get("target_modules")
    if isinstance(given, str) and given:
        return None
    names = _names(given, "target_modules")
    if not names:
        raise InvalidAdapter("The adapter names no target_modules.")
    known = {
        name
        for layer in range(num_layers)
        for projection in PROJECTIONS
        for name in _endings(module_name(layer, projection))
    }
    if unknown := sorted(names - known):
        raise UnsupportedAdapter(
            f"The adapter targets {unknown[0]!r:.80}, which is none of the modules that can be adapted.",
            hint=f"These can: {', '.join(PROJECTIONS)}.",
        )
    return names


def _layers(raw: Mapping[str, Any], num_layers: int) -> frozenset[int] | None:
    given = raw.get("layers_to_transform")
    if given is None or given == []:
        return None
    layers = given if isinstance(given, list) else [given]
    for layer in layers:
        if not isinstance(layer, int) or isinstance(layer, bool) or not 0 <= layer < num_layers:
            raise InvalidAdapter(f"layers_to_transform names layer {layer!r:.40} of a model with {num_layers} layers.")
    return frozenset(layers)


def _names(given: Any, key: str) -> frozenset[str]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise InvalidAdapter(f"{key} is {given!r:.60}; a list of names is expected.")
    return frozenset(given)


def _pattern(raw: Mapping[str, Any], key: str, num_layers: int) -> list[tuple[str, Any]]:
    given = raw.get(key) or {}
    if not isinstance(given, Mapping):
        raise InvalidAdapter(f"{key} is {given!r:.60}; an object is expected.")
    modules = {module_name(layer, projection) for layer in range(num_layers) for projection in PROJECTIONS}
    endings = {ending for module in modules for ending in _endings(module)}
    entries = []
    for name, value in given.items():
        whole = name.startswith("^")
        plain = name.removeprefix("^").replace("\\.", ".")
        entries.append((plain, value))
        if not _NAME.fullmatch(plain):
            raise UnsupportedAdapter(
                f"{key} has the expression {name!r:.60}; only names of modules are supported.",
                hint="Write each module's own entry, for example model.layers.0.self_attn.q_proj.",
            )
        # As an expression it could fit more than as a name: what fits nothing as a name is not passed over.
        if plain not in (modules if whole else endings):
            raise UnsupportedAdapter(
                f"{key} names {name!r:.60}, which is no module that an adapter can change in this model.",
                hint=f"The modules are called like {module_name(0, 'q_proj')}; without ^ the end of it is enough.",
            )
    return entries


def _by_pattern(pattern: Mapping[str, Number], module: str, default: Number) -> Number:
    return next((value for name, value in pattern.items() if f".{module}".endswith(f".{name}")), default)


def _endings(module: str) -> list[str]:
    """By which a module can be named: "model.layers.3.mlp.up_proj", "layers.3.mlp.up_proj", …, "up_proj"."""
    parts = module.split(".")
    return [".".join(parts[i:]) for i in range(len(parts))]


def _rank(value: Any, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_RANK:
        raise InvalidAdapter(f"{key} is {value!r:.40}; a rank is a whole number from 1 to {MAX_RANK}.")
    return value


def _number(value: Any, key: str) -> float:
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidAdapter(f"{key} is {value!r:.40}; a finite number is expected.")
    return number


def _flag(raw: Mapping[str, Any], key: str) -> bool:
    value = raw.get(key) or False
    if not isinstance(value, bool):
        raise InvalidAdapter(f"{key} is {value!r:.40}; true or false is expected.")
    return value
