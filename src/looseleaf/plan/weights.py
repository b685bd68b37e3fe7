"""Parameters by part of a model, and the bytes that each format of weights takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from looseleaf.plan.errors import InvalidPlan
from looseleaf.plan.shape import (
    Attention,
    Dense,
    Experts,
    FeedForward,
    GatedDeltaNet,
    LatentAttention,
    Mamba2,
    Mixer,
    ModelShape,
)

FORMAT_BITS: Mapping[str, float] = {
    "float32": 32,
    "bfloat16": 16,
    "float16": 16,
    "fp8": 8 + 32 / 128**2,
    "int8": 8,
    "int4": 4 + (16 + 4) / 128,
    "mxfp4": 4 + 8 / 32,
    "nvfp4": 4 + 8 / 16,
    "q8_0": 8.5,
    "q6_k": 6.5625,
    "q5_k": 5.5,
    "q4_k": 4.5,
    "q4_1": 5.0,
    "q4_0": 4.5,
}
"""Bits per weight with its scales. fp8: a float32 per tile of 128 × 128 (DeepSeek-V3); int8: a scale per row, not
counted; int4: a float16 scale and a 4-bit zero per 128 (GPTQ, AWQ); mxfp4 and nvfp4: an 8-bit scale per 32 and per 16;
the q formats: GGUF's blocks."""

PARTS = ("attention", "mlp", "experts", "embedding", "head", "small")
"""Parts of a model that a format can be set for. small: norms, biases, convolutions, routers."""

QUANTIZED_PARTS = ("attention", "mlp", "experts")
"""What --quantization rounds: the linear layers, without embedding and head."""

UNKNOWN_FORMAT = "unknown"
"""Stands for the parts of a checkpoint whose method is not known; the format is then the method's name."""

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Parameters:
    """Counts of numbers, each in one of `PARTS`."""

    attention: int = 0
    mlp: int = 0
    experts: int = 0
    embedding: int = 0
    head: int = 0
    small: int = 0

    def __add__(self, other: Parameters) -> Parameters:
        return Parameters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def total(self) -> int:
        return sum(getattr(self, part) for part in PARTS)


def count_parameters(shape: ModelShape) -> Parameters:
    """Every parameter of the decoder. A tied head is counted once, as the embedding."""
    norm = shape.hidden * (2 if shape.norm_bias else 1)
    total = Parameters(
        embedding=shape.vocab * shape.hidden + shape.extra_embedding,
        head=0 if shape.tied else shape.vocab * shape.hidden,
        small=norm + (shape.vocab if shape.head_bias else 0),
    )
    for layer in shape.layers:
        total += Parameters(small=layer.norms * norm + layer.extra)
        if layer.mixer is not None:
            total += mixer_parameters(layer.mixer, shape.hidden)
        if layer.feed_forward is not None:
            total += feed_forward_parameters(layer.feed_forward, shape.hidden)
    return total


def active_matrices(shape: ModelShape) -> int:
    """Weights that one token is multiplied by, without embedding and head: with experts, those it is sent to."""
    total = 0
    for layer in shape.layers:
        if layer.mixer is not None:
            total += mixer_parameters(layer.mixer, shape.hidden).attention
        match layer.feed_forward:
            case Experts() as experts:
                total += experts.active * _matrices(experts, shape.hidden) + experts.count * shape.hidden
                total += 0 if experts.shared is None else _matrices(experts.shared, shape.hidden)
            case Dense() as dense:
                total += _matrices(dense, shape.hidden)
    return total


def mixer_parameters(mixer: Mixer, hidden: int) -> Parameters:
    match mixer:
        case Attention():
            return _attention_parameters(mixer, hidden)
        case LatentAttention():
            return _latent_parameters(mixer, hidden)
        case GatedDeltaNet():
            values = mixer.value_heads * mixer.value_dim
            matrices = hidden * (mixer.conv_channels + values + 2 * mixer.value_heads) + values * hidden
            small = mixer.conv_channels * mixer.conv_kernel + 2 * mixer.value_heads + mixer.value_dim
            return Parameters(attention=matrices, small=small)
        case Mamba2():
            into = mixer.inner + mixer.conv_channels + mixer.heads
            small = mixer.conv_channels * (mixer.conv_kernel + mixer.conv_bias) + 3 * mixer.heads + mixer.inner
            small += (into + hidden) if mixer.bias else 0
            return Parameters(attention=hidden * into + mixer.inner * hidden, small=small)


def _attention_parameters(mixer: Attention, hidden: int) -> Parameters:
    queries, values_out = mixer.heads * mixer.key_dim, mixer.heads * mixer.value_dim
    keys, values = mixer.kv_heads * mixer.key_dim, mixer.kv_heads * mixer.value_dim
    if not mixer.cached:
        keys = values = 0
    elif mixer.values_are_keys:
        values = 0
    into = queries * (2 if mixer.gated else 1) + keys + values
    small = into if mixer.qkv_bias else 0
    small += hidden if mixer.out_bias else 0
    small += (2 if mixer.cached else 1) * mixer.key_dim if mixer.head_norms else 0
    small += mixer.heads if mixer.sinks else 0
    return Parameters(attention=hidden * into + values_out * hidden, small=small)


def _latent_parameters(mixer: LatentAttention, hidden: int) -> Parameters:
    queries = mixer.heads * (mixer.nope_dim + mixer.rope_dim)
    keys_and_values = mixer.heads * (mixer.nope_dim + mixer.value_dim)
    matrices = hidden * mixer.cached_dim + mixer.latent_dim * keys_and_values + mixer.heads * mixer.value_dim * hidden
    matrices += hidden * queries if mixer.query_rank is None else mixer.query_rank * (hidden + queries)
    small = mixer.latent_dim + (mixer.query_rank or 0)
    if mixer.indexer is not None:
        index = mixer.indexer
        matrices += (mixer.query_rank or hidden) * index.heads * index.key_dim + hidden * (index.key_dim + index.heads)
        small += 2 * index.key_dim
    return Parameters(attention=matrices, small=small)


def feed_forward_parameters(part: FeedForward, hidden: int) -> Parameters:
    match part:
        case Dense():
            return Parameters(mlp=_matrices(part, hidden), small=_biases(part, hidden))
        case Experts():
            small = part.count * (hidden + part.router_bias + _biases(part, hidden)) + part.extra
            mlp = 0
            if part.shared is not None:
                mlp = _matrices(part.shared, hidden)
                small += _biases(part.shared, hidden) + (hidden if part.shared_gate else 0)
            return Parameters(experts=part.count * _matrices(part, hidden), mlp=mlp, small=small)


def _matrices(part: Dense | Experts, hidden: int) -> int:
    return hidden * part.inner * (3 if part.gated else 2)


def _biases(part: Dense | Experts, hidden: int) -> int:
    return (part.inner * (2 if part.gated else 1) + hidden) if part.bias else 0


def weight_formats(shape: ModelShape, dtype: str | None = None, quantization: str | None = None) -> dict[str, str]:
    """The format of each part: the checkpoint's own, unless `dtype` or `quantization` (a format, or none) says else.

    Raises `InvalidPlan` for a format that is not known.
    """
    plain = dtype or shape.dtype
    if plain not in DTYPES:
        raise InvalidPlan(f"weights dtype is {plain!r}.", hint=f"Known: {', '.join(DTYPES)}.")
    formats = dict.fromkeys(PARTS, plain)
    if quantization is None and dtype is None:
        published = dict(shape.quantization)
        if unknown := published.get(UNKNOWN_FORMAT):
            raise InvalidPlan(
                f"{shape.name} is quantised by a method that is not known here: {unknown}.",
                hint="Say what its linear layers take with --quantization, or all weights with --weight-memory and "
                "--quantization none.",
            )
        return formats | published
    if quantization is None:
        return formats
    if quantization == "none":
        return formats
    if quantization not in FORMAT_BITS:
        raise InvalidPlan(f"quantization is {quantization!r}.", hint=f"Known: none, {', '.join(FORMAT_BITS)}.")
    return formats | dict.fromkeys(QUANTIZED_PARTS, quantization)


def format_bytes_of(parameters: Parameters, formats: Mapping[str, str]) -> dict[str, int]:
    """Bytes of each part, rounded up."""
    return {part: -int(-getattr(parameters, part) * FORMAT_BITS[formats[part]] // 8) for part in PARTS}
