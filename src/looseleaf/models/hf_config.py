"""Reads a Hugging Face `config.json`, in its older and newer spellings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from looseleaf.models.config import MAX_LAYERS, ModelConfig
from looseleaf.models.errors import InvalidModelConfig, UnsupportedModel
from looseleaf.models.registry import Family, family_of
from looseleaf.models.rope import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling

_MISSING = object()


class Fields:
    """Typed look-ups in a mapping that came from a file: null and absent are the same, a wrong type is refused."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw

    def _get(self, key: str, default: Any) -> Any:
        value = self._raw.get(key)
        if value is not None:
            return value
        if default is _MISSING:
            raise InvalidModelConfig(f"The model configuration lacks {key!r}.")
        return default

    def integer(self, key: str, default: Any = _MISSING) -> int:
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidModelConfig(f"{key} is {value!r}; a whole number is expected.")
        return value

    def count(self, key: str, default: Any = _MISSING, *, at_most: int = 1 << 24) -> int:
        value = self.integer(key, default)
        if not 1 <= value <= at_most:
            raise InvalidModelConfig(f"{key} is {value}; it must be between 1 and {at_most}.")
        return value

    def number(self, key: str, default: Any = _MISSING) -> float:
        value = self._get(key, default)
        try:
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        except OverflowError:  # a whole number of hundreds of digits
            number = math.inf
        if not math.isfinite(number):
            raise InvalidModelConfig(f"{key} is {value!r:.40}; a finite number is expected.")
        return number

    def boolean(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise InvalidModelConfig(f"{key} is {value!r}; true or false is expected.")
        return value

    def mapping(self, key: str) -> Fields | None:
        value = self._get(key, None)
        if value is not None and not isinstance(value, Mapping):
            raise InvalidModelConfig(f"{key} is {value!r}; an object is expected.")
        return None if value is None else Fields(value)

    def names(self, key: str) -> list[str] | None:
        value = self._get(key, None)
        if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
            raise InvalidModelConfig(f"{key} is {value!r}; a list of names is expected.")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise InvalidModelConfig(f"{key} is {value!r}; a name is expected.")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        value = self._get(key, [])
        return tuple(Fields({key: item}).integer(key) for item in (value if isinstance(value, list) else [value]))

    def has(self, key: str) -> bool:
        return self._raw.get(key) is not None

    def mentions(self, key: str) -> bool:
        return key in self._raw


def config_from_hf(raw: Mapping[str, Any]) -> ModelConfig:
    """The configuration that a parsed `config.json` describes.

    Raises `UnsupportedModel` for an architecture, activation, rotary scaling or quantisation that is not
    implemented, `InvalidModelConfig` for missing, wrongly typed or contradictory values.
    """
    config = Fields(raw)
    family = _family(config)
    _refuse_unsupported(config)
    hidden_size = config.integer("hidden_size")
    num_heads = config.count("num_attention_heads")
    num_layers = config.count("num_hidden_layers", at_most=MAX_LAYERS)
    max_positions = config.count("max_position_embeddings")
    theta, scaling = _rotary(config, max_positions)
    attention_bias = config.boolean("attention_bias", False)
    bos = config.token_ids("bos_token_id")
    return ModelConfig(
        architecture=family.architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", num_heads),
        head_dim=_head_dim(config, family, hidden_size, num_heads),
        max_position_embeddings=max_positions,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=config.boolean("tie_word_embeddings", False),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        attention_output_bias=attention_bias and family.qkv_bias is None,
        mlp_bias=config.boolean("mlp_bias", False) and family.architecture == "LlamaForCausalLM",
        qk_norm=family.qk_norm,
        sliding_windows=_sliding_windows(config, family, num_layers),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=config.token_ids("eos_token_id"),
    )


def _family(config: Fields) -> Family:
    architectures = config.names("architectures")
    if not architectures:
        raise InvalidModelConfig("The model configuration names no architecture.")
    return family_of(architectures[0])


def _refuse_unsupported(config: Fields) -> None:
    activation = config.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModel(f"The activation {activation!r} is not supported.", hint="Known: silu.")
    quantisation = config.mapping("quantization_config")
    if quantisation is not None:
        method = quantisation.text("quant_method", "unnamed")
        raise UnsupportedModel(
            f"Weights quantised by {method!r} are not supported in a Hugging Face folder.",
            hint="Use the unquantised model, or a GGUF file of it.",
        )


def _head_dim(config: Fields, family: Family, hidden_size: int, num_heads: int) -> int:
    if config.has("head_dim"):
        return config.integer("head_dim")
    if family.default_head_dim is not None:
        return family.default_head_dim
    if hidden_size % num_heads:
        raise InvalidModelConfig(f"hidden_size {hidden_size} cannot be divided among {num_heads} heads.")
    return hidden_size // num_heads


def _sliding_windows(config: Fields, family: Family, num_layers: int) -> tuple[int | None, ...]:
    """One window per layer. `layer_types` decides where it is given; the families have their own rule without it."""
    kinds = config.names("layer_types")
    if unknown := sorted(set(kinds or ()) - {"full_attention", "sliding_attention"}):
        raise UnsupportedModel(f"Layers of the type {', '.join(unknown)} are not supported.")
    window = _window(config, family)
    if window is None:
        return (None,) * num_layers
    if kinds is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    first = config.integer("max_window_layers", 28) if family.window_needs_consent else 0
    return tuple(window if layer >= first else None for layer in range(num_layers))


def _window(config: Fields, family: Family) -> int | None:
    if family.window_needs_consent:
        return config.integer("sliding_window", 4096) if config.boolean("use_sliding_window", False) else None
    if family.window_by_default is None:
        return None
    if not config.mentions("sliding_window"):
        return family.window_by_default
    return config.integer("sliding_window") if config.has("sliding_window") else None


def _rotary(config: Fields, max_positions: int) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from `rope_parameters` (transformers 5) or `rope_scaling` and a base beside it."""
    parameters = config.mapping("rope_parameters") or config.mapping("rope_scaling") or Fields({})
    theta = parameters.number("rope_theta", config.number("rope_theta", 10_000.0))
    partial = parameters.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise UnsupportedModel(f"Rotating only {partial:g} of each head is not supported.")
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind in ("default", "dynamic"):
        # Dynamic NTK scaling sets in beyond max_position_embeddings, where this engine never goes.
        return theta, None
    if kind not in ("linear", "llama3", "yarn"):
        raise UnsupportedModel(
            f"The rotary scaling {kind!r} is not supported.", hint="Known: default, dynamic, linear, llama3, yarn."
        )
    factor = parameters.number("factor")
    if factor < 1:
        raise InvalidModelConfig(f"The rotary scaling factor is {factor:g}; it must be at least 1.")
    if kind == "linear":
        return theta, LinearScaling(factor)
    original = parameters.count("original_max_position_embeddings", max_positions)
    return theta, (_llama3 if kind == "llama3" else _yarn)(parameters, factor, original)


def _llama3(parameters: Fields, factor: float, original: int) -> Llama3Scaling:
    low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
    if not 0 < low < high:
        raise InvalidModelConfig(f"low_freq_factor {low:g} must be above 0 and below high_freq_factor {high:g}.")
    return Llama3Scaling(factor, low, high, original)


def _yarn(parameters: Fields, factor: float, original: int) -> YarnScaling:
    for key in ("mscale", "mscale_all_dim"):
        if parameters.has(key):
            raise UnsupportedModel(f"YaRN's {key!r} is not supported.")
    if not parameters.boolean("truncate", True):
        raise UnsupportedModel("YaRN without truncation is not supported.")
    beta_fast, beta_slow = parameters.number("beta_fast", 32.0), parameters.number("beta_slow", 1.0)
    if not 0 < beta_slow <= beta_fast:
        raise InvalidModelConfig(f"YaRN's beta_slow {beta_slow:g} must be above 0 and at most beta_fast {beta_fast:g}.")
    attention_factor = parameters.number("attention_factor", 0.1 * math.log(factor) + 1.0)
    return YarnScaling(factor, original, attention_factor, beta_fast, beta_slow)
