"""One reader per family of models: which layers it has, as its published code builds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from looseleaf.plan.decoders import (
    falcon,
    gemma,
    gemma2,
    gemma3,
    gpt_oss,
    llama,
    mistral,
    mixtral,
    opt,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    starcoder2,
)
from looseleaf.plan.fields import ConfigFields
from looseleaf.plan.latent_decoders import deepseek
from looseleaf.plan.mixed_decoders import gemma4, llama4, mimo_v2_flash, nemotron_h, nemotron_nas, qwen3_5
from looseleaf.plan.shape import ModelShape

READERS: Mapping[str, Callable[[ConfigFields], ModelShape]] = {
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3_moe": qwen3_moe,
    "phi3": phi3,
    "falcon": falcon,
    "RefinedWeb": falcon,
    "RefinedWebModel": falcon,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "gemma3_text": gemma3,
    "gemma4": gemma4,
    "gemma4_text": gemma4,
    "mixtral": mixtral,
    "starcoder2": starcoder2,
    "opt": opt,
    "gpt_oss": gpt_oss,
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "deepseek_v32": deepseek,
    "kimi_k2": deepseek,
    "llama4": llama4,
    "llama4_text": llama4,
    "qwen3_5": qwen3_5,
    "qwen3_5_text": qwen3_5,
    "qwen3_5_moe": qwen3_5,
    "qwen3_5_moe_text": qwen3_5,
    "qwen3_next": qwen3_5,
    "nemotron-nas": nemotron_nas,
    "nemotron_h": nemotron_h,
    "mimo_v2_flash": mimo_v2_flash,
}
"""By model_type."""

ARCHITECTURES = frozenset(
    f"{stem}For{task}"
    for task, stems in {
        "CausalLM": "Llama Mistral Qwen2 Qwen3 Qwen3Moe Phi3 Falcon RW Gemma Gemma2 Gemma3 Gemma4 Mixtral Starcoder2 "
        "OPT GptOss DeepseekV2 DeepseekV3 DeepseekV32 KimiK2 Llama4 Qwen3_5 Qwen3_5Moe Qwen3Next DeciLM NemotronH "
        "MiMoV2Flash",
        "ConditionalGeneration": "Gemma3 Gemma4 Llama4 Qwen3_5 Qwen3_5Moe Mistral3",
    }.items()
    for stem in stems.split()
)
