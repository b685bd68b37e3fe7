"""The architectures that can be run, and in what they differ from Llama."""

from __future__ import annotations

from dataclasses import dataclass

from looseleaf.models.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture: what its configuration leaves unsaid."""

    architecture: str
    gguf_architecture: str
    qkv_bias: bool | None = None
    """None: the configuration's `attention_bias` decides, for the output projection too."""
    qk_norm: bool = False
    default_head_dim: int | None = None
    """None: hidden_size / heads."""
    window_by_default: int | None = None
    """The sliding window of a configuration that does not mention one."""
    window_needs_consent: bool = False
    """The window counts only under `use_sliding_window`, and from layer `max_window_layers` on."""
    gguf_permutes_qk: bool = False
    """GGUF files store query and key rows in llama.cpp's rotary order."""


FAMILIES = (
    Family("LlamaForCausalLM", "llama", gguf_permutes_qk=True),
    Family("MistralForCausalLM", "llama", qkv_bias=False, window_by_default=4096, gguf_permutes_qk=True),
    Family("Qwen2ForCausalLM", "qwen2", qkv_bias=True, window_needs_consent=True),
    Family("Qwen3ForCausalLM", "qwen3", qk_norm=True, default_head_dim=128, window_needs_consent=True),
)


def family_of(architecture: str) -> Family:
    """The family of a Hugging Face architecture name. Raises `UnsupportedModel`."""
    for family in FAMILIES:
        if family.architecture == architecture:
            return family
    known = ", ".join(family.architecture for family in FAMILIES)
    raise UnsupportedModel(f"The architecture {architecture!r} is not supported.", hint=f"Known: {known}.")


def family_of_gguf(architecture: str) -> Family:
    """The family of a GGUF `general.architecture`. Raises `UnsupportedModel`."""
    for family in FAMILIES:
        if family.gguf_architecture == architecture:
            return family
    known = ", ".join(sorted({family.gguf_architecture for family in FAMILIES}))
    raise UnsupportedModel(f"The GGUF architecture {architecture!r} is not supported.", hint=f"Known: {known}.")
