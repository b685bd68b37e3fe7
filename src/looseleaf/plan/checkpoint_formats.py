"""In which formats a checkpoint's weights are stored, as its configuration says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from looseleaf.plan.fields import ConfigFields
from looseleaf.plan.shape import ModelShape
from looseleaf.plan.weights import DTYPES, QUANTIZED_PARTS, UNKNOWN_FORMAT


def checkpoint_dtype(fields: ConfigFields) -> tuple[str, list[str]]:
    """The dtype of unquantised weights, and a note where the configuration does not say."""
    dtype = fields.text("dtype") or fields.text("torch_dtype")
    dtype = dtype.removeprefix("torch.")
    if not dtype:
        return "bfloat16", ["the configuration names no dtype: counted as bfloat16"]
    if dtype not in DTYPES:
        raise fields.wrong("torch_dtype", dtype, f"one of {', '.join(DTYPES)}")
    return dtype, []


def checkpoint_formats(fields: ConfigFields, shape: ModelShape) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """(part, format) for what is quantised, and notes. A method that is not known is named `UNKNOWN_FORMAT`."""
    config = fields.values.get("quantization_config")
    if not isinstance(config, Mapping):
        return (), []
    method = str(config.get("quant_method", "")).lower()
    found = _format(method, config)
    if found is None:
        return ((UNKNOWN_FORMAT, method or "no quant_method"),), []
    if method == "mxfp4":
        parts: tuple[str, ...] = ("experts",)
    else:
        ignored = config.get("ignore") or config.get("modules_to_not_convert") or ()
        keeps_attention = _ignores_attention(ignored, len(shape.layers))
        parts = tuple(part for part in QUANTIZED_PARTS if not (part == "attention" and keeps_attention))
    return tuple((part, found) for part in parts), [f"weights as published: {found} in {', '.join(parts)}"]


def checkpoint_kv_dtype(fields: ConfigFields) -> str | None:
    """fp8 where the checkpoint brings scales for such a cache."""
    config = fields.values.get("quantization_config")
    if not isinstance(config, Mapping):
        return None
    scheme = config.get("kv_cache_scheme")
    eight_bits = isinstance(scheme, Mapping) and scheme.get("num_bits") == 8 and scheme.get("type") == "float"
    return "fp8" if eight_bits or str(config.get("kv_cache_quant_algo", "")).upper() == "FP8" else None


def _format(method: str, config: Mapping[str, Any]) -> str | None:
    if method in ("fp8", "mxfp4"):
        return method
    if method in ("gptq", "awq"):
        return {4: "int4", 8: "int8"}.get(config.get("bits", 0))
    if method == "modelopt" and (algorithm := str(config.get("quant_algo", "")).lower()) in ("fp8", "nvfp4"):
        return algorithm
    if method == "compressed-tensors":
        kinds = {_group_format(group) for group in dict(config.get("config_groups") or {}).values()}
        return kinds.pop() if len(kinds) == 1 else None
    return None


def _group_format(group: Any) -> str | None:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    kinds = {("float", 8): "fp8", ("int", 8): "int8", ("int", 4): "int4", ("float", 4): "nvfp4"}
    return kinds.get((str(weights.get("type")), weights.get("num_bits", 0)))


def _ignores_attention(ignored: Any, layers: int) -> bool:
    """Whether the attention of every layer is left out, each by its number or all by one pattern."""
    patterns = [str(each) for each in ignored] if isinstance(ignored, list) else []
    attention = [each for each in patterns if re.search(r"self_attn|attention", each)]
    numbered = {int(match[1]) for each in attention if (match := re.search(r"layers\.(\d+)\.", each))}
    return len(numbered) >= layers or any("layers.*" in each or "layers." not in each for each in attention)
