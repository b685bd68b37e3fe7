"""The shape of a model: layer by layer, what mixes tokens and what follows it. Numbers only, no weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from looseleaf.plan.errors import InvalidPlan


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with keys and values per head: full, grouped-query (kv_heads < heads) or multi-query (1).

    `window`: a token sees the last `window` tokens, itself among them. `chunk`: it sees its own chunk of that many.
    """

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    chunk: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    head_norms: bool = False
    """A norm over each head's queries and keys: two vectors of key_dim."""
    gated: bool = False
    """Queries come with a gate as wide as they are."""
    sinks: bool = False
    """One learned number per head in the softmax."""
    values_are_keys: bool = False
    """One projection serves keys and values (both are still cached: only the keys are rotated)."""
    cached: bool = True
    """False: it reads the keys and values of an earlier layer, and has none of its own."""

    @property
    def limit(self) -> int | None:
        """Most tokens that one query sees; None: all."""
        return self.window or self.chunk


@dataclass(frozen=True, slots=True)
class Indexer:
    """Picks the `topk` tokens that sparse latent attention reads. One key of `key_dim` per token, in 8 bits."""

    heads: int
    key_dim: int
    topk: int


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): a token leaves one latent and one rotated key."""

    heads: int
    query_rank: int | None
    latent_dim: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    indexer: Indexer | None = None

    @property
    def cached_dim(self) -> int:
        """Numbers that a token leaves in a layer, the same on every rank."""
        return self.latent_dim + self.rope_dim


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Linear attention with a matrix of key_dim × value_dim per value head as its state (arXiv 2412.06464)."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    conv_kernel: int
    state_dtype: str

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state_numbers(self) -> int:
        return self.value_heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True)
class Mamba2:
    """State-space layer (arXiv 2405.21060): a matrix of head_dim × state_dim per head as its state."""

    heads: int
    head_dim: int
    state_dim: int
    groups: int
    conv_kernel: int
    conv_bias: bool
    bias: bool
    state_dtype: str

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        return self.inner + 2 * self.groups * self.state_dim

    @property
    def state_numbers(self) -> int:
        return self.heads * self.head_dim * self.state_dim


Mixer: TypeAlias = Attention | LatentAttention | GatedDeltaNet | Mamba2
Recurrent = (GatedDeltaNet, Mamba2)
"""Mixers whose memory does not grow with the context."""


@dataclass(frozen=True, slots=True)
class Dense:
    """A feed-forward part every token passes: two matrices, or three when `gated`."""

    inner: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts, of which each token passes `active`, and the `shared` part that every token passes."""

    count: int
    active: int
    inner: int
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared: Dense | None = None
    shared_gate: bool = False
    extra: int = 0
    """Numbers beside the matrices: scales of the router and of the experts."""


FeedForward: TypeAlias = Dense | Experts


@dataclass(frozen=True, slots=True)
class Layer:
    mixer: Mixer | None
    feed_forward: FeedForward | None
    norms: int = 2
    """Norms over the hidden state, each a vector of the model's hidden size (two with norm_bias)."""
    extra: int = 0
    """Numbers beside these: per-layer embeddings and their projections, scales."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder, as its configuration describes it. `notes`: what a reader should know about how it was read."""

    name: str
    architecture: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    tied: bool
    max_len: int
    dtype: str
    norm_bias: bool = False
    head_bias: bool = False
    extra_embedding: int = 0
    """Numbers looked up, not multiplied: per-layer token embeddings, learned positions."""
    quantization: tuple[tuple[str, str], ...] = ()
    """The checkpoint's own: (part, format) for parts of `weights.PARTS`; empty: every weight in `dtype`."""
    kv_dtype: str | None = None
    """What the checkpoint asks for; None: `dtype`."""
    notes: tuple[str, ...] = ()

    def mixers(self) -> list[Mixer]:
        return [layer.mixer for layer in self.layers if layer.mixer is not None]


def shard(shape: ModelShape, ranks: int) -> ModelShape:
    """One rank's part under tensor parallelism over heads, feed-forward columns and vocabulary.

    Keys and values of fewer heads than ranks are replicated, as are latents and the indexer's keys: every rank holds
    them whole. Raises `InvalidPlan` where heads do not divide.
    """
    if ranks == 1:
        return shape
    layers = tuple(
        replace(
            layer,
            mixer=None if layer.mixer is None else _shard_mixer(layer.mixer, ranks),
            feed_forward=None if layer.feed_forward is None else _shard_feed_forward(layer.feed_forward, ranks),
        )
        for layer in shape.layers
    )
    return replace(shape, layers=layers, vocab=-(-shape.vocab // ranks))


def _shard_mixer(mixer: Mixer, ranks: int) -> Mixer:
    match mixer:
        case Attention():
            return replace(
                mixer,
                heads=_divided("attention heads", mixer.heads, ranks),
                kv_heads=_divided("key-value heads", mixer.kv_heads, ranks, replicated=True),
            )
        case LatentAttention():
            return replace(mixer, heads=_divided("attention heads", mixer.heads, ranks))
        case GatedDeltaNet():
            return replace(
                mixer,
                key_heads=_divided("linear key heads", mixer.key_heads, ranks),
                value_heads=_divided("linear value heads", mixer.value_heads, ranks),
            )
        case Mamba2():
            return replace(
                mixer,
                heads=_divided("state-space heads", mixer.heads, ranks),
                groups=_divided("state-space groups", mixer.groups, ranks, replicated=True),
            )


def _shard_feed_forward(part: FeedForward, ranks: int) -> FeedForward:
    match part:
        case Dense():
            return replace(part, inner=-(-part.inner // ranks))
        case Experts():
            shared = None if part.shared is None else replace(part.shared, inner=-(-part.shared.inner // ranks))
            return replace(part, inner=-(-part.inner // ranks), shared=shared)


def _divided(what: str, count: int, ranks: int, *, replicated: bool = False) -> int:
    if count % ranks == 0:
        return count // ranks
    if replicated and ranks % count == 0:
        return 1
    raise InvalidPlan(
        f"{count} {what} cannot be shared out over {ranks} ranks.",
        hint="Choose a tensor_parallel_size that divides them" + (" or is a multiple of them." if replicated else "."),
    )
