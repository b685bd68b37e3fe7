"""How one number of the KV cache is held, and the scales that come with it."""

from __future__ import annotations

from dataclasses import dataclass

from looseleaf.plan.errors import InvalidPlan
from looseleaf.plan.shape import ModelShape


@dataclass(frozen=True, slots=True)
class KVFormat:
    """`element` bytes per number, and `scale` bytes per token and head, for the keys and again for the values."""

    name: str
    element: int
    scale: int = 0
    latent_bytes: int | None = None
    """Bytes of a token's latent and rotated key together, where that is not element × numbers."""
    note: str = ""


KV_FORMATS = {
    each.name: each
    for each in (
        KVFormat("float32", 4),
        KVFormat("bfloat16", 2),
        KVFormat("float16", 2),
        KVFormat("fp8", 1, note="one scale per layer, among the weights"),
        KVFormat("int8", 1, 2, note="a bfloat16 scale per token and head, for keys and for values"),
        KVFormat("int8_per_token_head", 1, 4, note="a float32 scale per token and head, for keys and for values"),
        KVFormat("fp8_per_token_head", 1, 4, note="a float32 scale per token and head, for keys and for values"),
        KVFormat("fp8_ds_mla", 1, latent_bytes=656, note="512 × fp8 + 4 float32 scales + 64 × bfloat16"),
    )
}
"""int8 is Looseleaf's own; *_per_token_head and fp8_ds_mla are vLLM's."""

_SAME = {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "half": "float16", "fp16": "float16", "bf16": "bfloat16"}

INDEXER_SCALE_BYTES = 4
"""DeepSeek-V3.2's index keys: fp8, with one float32 scale per 128 numbers."""


def kv_format(shape: ModelShape, name: str = "auto") -> KVFormat:
    """The format called `name`; auto: what the checkpoint asks for, else the model's dtype.

    Raises `InvalidPlan` for a name that is not known, or a format that has no place in this model.
    """
    if name == "auto":
        name = shape.kv_dtype or shape.dtype
    found = KV_FORMATS.get(_SAME.get(name, name))
    if found is None:
        raise InvalidPlan(f"kv_cache_dtype is {name!r}.", hint=f"Known: auto, {', '.join(KV_FORMATS)}.")
    return found
