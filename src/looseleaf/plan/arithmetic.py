"""What a model costs: bytes of weights, bytes of keys and values, and floating-point operations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from looseleaf.plan.errors import InvalidPlan
from looseleaf.plan.kv_format import INDEXER_SCALE_BYTES, KVFormat, kv_format
from looseleaf.plan.shape import Attention, Experts, GatedDeltaNet, LatentAttention, Mamba2, Mixer, ModelShape, shard
from looseleaf.plan.weights import (
    FORMAT_BITS,
    Parameters,
    active_matrices,
    count_parameters,
    format_bytes_of,
    weight_formats,
)

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class ContextTerm:
    """Layers that read the context alike: each of `layers` reads at most the last `limit` tokens (None: all).

    `bytes_per_token`: what one token of context leaves in all of these layers, and what a decode step reads of it.
    `flops_per_pair`: of one query with one token of context, in all of these layers, when it is the only query of its
    sequence; `flops_per_prompt_pair`: when there are many (latents are then expanded to heads first).
    `chunked`: the limit is counted from the chunk's beginning, not back from the query.
    """

    limit: int | None
    layers: int
    bytes_per_token: int
    flops_per_pair: int
    flops_per_prompt_pair: int
    chunked: bool = False


class ModelArithmetic:
    """The figures of one rank of a model. All sizes are in bytes, all work in floating-point operations.

    `dtype`, `quantization`: of the weights, see `weight_formats`; `kv_cache_dtype`: see `kv_format`.
    Raises `InvalidPlan` for a setting that makes no sense with this model.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        dtype: str | None = None,
        quantization: str | None = None,
        kv_cache_dtype: str = "auto",
        tensor_parallel: int = 1,
    ) -> None:
        if tensor_parallel < 1:
            raise InvalidPlan(f"tensor_parallel_size is {tensor_parallel}.", hint="It must be at least 1.")
        self.whole = shape
        self.shape = shard(shape, tensor_parallel)
        self.tensor_parallel = tensor_parallel
        self.formats = weight_formats(shape, dtype, quantization)
        self.dtype = dtype or shape.dtype
        self.kv_format: KVFormat = kv_format(shape, kv_cache_dtype)
        if self.kv_format.latent_bytes is not None and not any(isinstance(m, LatentAttention) for m in shape.mixers()):
            raise InvalidPlan(
                f"kv_cache_dtype {self.kv_format.name} is for latent attention, which {shape.name} has not.",
                hint="Use fp8.",
            )

    @cached_property
    def parameters(self) -> Parameters:
        """Of one rank."""
        return count_parameters(self.shape)

    @cached_property
    def weight_bytes_by_part(self) -> dict[str, int]:
        return format_bytes_of(self.parameters, self.formats)

    @cached_property
    def weight_bytes(self) -> int:
        return sum(self.weight_bytes_by_part.values())

    def weight_bytes_read(self, num_tokens: int) -> float:
        """Bytes of weights that a step over `num_tokens` tokens reads, if tokens choose their experts evenly.

        Of the embedding, only the rows looked up; a tied one is read whole, as the head.
        """
        by_part = self.weight_bytes_by_part
        total = float(self.weight_bytes - by_part["experts"])
        if not self.shape.tied:
            rows = num_tokens * self.shape.hidden * FORMAT_BITS[self.formats["embedding"]] / 8
            total += min(rows, by_part["embedding"]) - by_part["embedding"]
        touched = 0.0
        for count, active, nbytes in self._experts:
            touched += nbytes * (1.0 - (1.0 - active / count) ** num_tokens)
        return total + touched

    @cached_property
    def _experts(self) -> list[tuple[int, int, float]]:
        """(experts, active ones, bytes of all) for each kind of mixture, summed over its layers."""
        kinds: Counter[Experts] = Counter(
            layer.feed_forward for layer in self.shape.layers if isinstance(layer.feed_forward, Experts)
        )
        bits = FORMAT_BITS[self.formats["experts"]]
        sizes = ((kind, kind.inner * self.shape.hidden * (3 if kind.gated else 2)) for kind in kinds)
        return [(kind.count, kind.active, kinds[kind] * kind.count * size * bits / 8) for kind, size in sizes]

    @cached_property
    def flops_per_token(self) -> int:
        """Of every matrix that one token is multiplied by, and of its recurrent states; not the context, nor the head.

        Two per weight: a multiplication and an addition.
        """
        return 2 * active_matrices(self.shape) + sum(_state_flops(mixer) for mixer in self.shape.mixers())

    @cached_property
    def flops_per_sample(self) -> int:
        """Of the head, once for each position whose next token is wanted."""
        return 2 * self.shape.vocab * self.shape.hidden

    @cached_property
    def context_terms(self) -> tuple[ContextTerm, ...]:
        """The layers that keep a context, by how far back they read; sparse reading counts as a limit."""
        kinds: Counter[tuple[int | None, bool, int, int, int]] = Counter()
        for mixer in self.shape.mixers():
            for key in _context_kinds(mixer, self.kv_format):
                kinds[key] += 1
        return tuple(
            ContextTerm(limit, layers, layers * nbytes, layers * flops, layers * prompt_flops, chunked)
            for (limit, chunked, nbytes, flops, prompt_flops), layers in kinds.items()
        )

    def attention_flops(self, query_tokens: int, context: int) -> int:
        """Of the last `query_tokens` of `context` tokens attending to what is before them and to themselves."""
        total = 0
        for term in self.context_terms:
            flops = term.flops_per_pair if query_tokens == 1 else term.flops_per_prompt_pair
            total += flops * attended_pairs(term, query_tokens, context)
        return total

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """What one more token of context takes as long as every window has room: the sum over all layers."""
        return sum(kv_bytes_of_token(mixer, self.kv_format) for mixer in self.shape.mixers())

    @cached_property
    def kv_slope(self) -> int:
        """What one more token of a long context takes: the layers that keep all of it."""
        return sum(
            kv_bytes_of_token(mixer, self.kv_format)
            for mixer in self.shape.mixers()
            if not (isinstance(mixer, Attention) and mixer.limit is not None)
        )

    @cached_property
    def state_bytes(self) -> int:
        """Of the recurrent states of one sequence, whatever its length."""
        return sum(state_bytes_of(mixer, self.dtype) for mixer in self.shape.mixers())

    def kv_bytes(self, context: int) -> int:
        """Of a sequence of `context` tokens: windows keep what the next token can see, states are added.

        Without rounding to blocks and without a step's lookahead; see `kv_layout` for what an allocator holds.
        """
        total = self.state_bytes
        for mixer in self.shape.mixers():
            limit = mixer.limit if isinstance(mixer, Attention) else None
            total += kv_bytes_of_token(mixer, self.kv_format) * (context if limit is None else min(context, limit))
        return total

    def kv_bytes_read(self, context: int) -> int:
        """By one decode step of one sequence of `context` tokens; states are read, and written back."""
        return 2 * self.state_bytes + sum(
            term.bytes_per_token * (context if term.limit is None else min(context, term.limit))
            for term in self.context_terms
        )


def kv_bytes_of_token(mixer: Mixer, held: KVFormat) -> int:
    """What one token leaves in one layer."""
    match mixer:
        case Attention():
            numbers = mixer.kv_heads * (mixer.key_dim + mixer.value_dim)
            return numbers * held.element + 2 * mixer.kv_heads * held.scale if mixer.cached else 0
        case LatentAttention():
            latent = mixer.cached_dim * held.element + held.scale if held.latent_bytes is None else held.latent_bytes
            return latent + index_bytes_of_token(mixer)
        case _:
            return 0


def index_bytes_of_token(mixer: LatentAttention) -> int:
    """What one token leaves for the indexer, in 8 bits with a scale for each 128 numbers, whatever the KV dtype."""
    if mixer.indexer is None:
        return 0
    return mixer.indexer.key_dim + INDEXER_SCALE_BYTES * -(-mixer.indexer.key_dim // 128)


def state_bytes_of(mixer: Mixer, dtype: str) -> int:
    """The recurrent state and the last inputs of the convolution (in `dtype`) of one sequence in one layer."""
    if not isinstance(mixer, GatedDeltaNet | Mamba2):
        return 0
    convolution = (mixer.conv_kernel - 1) * mixer.conv_channels * DTYPE_BYTES[dtype]
    return convolution + mixer.state_numbers * DTYPE_BYTES[mixer.state_dtype]


def _state_flops(mixer: Mixer) -> int:
    """Of one token: decay, read, update and output of the state (7 and 5 operations per number), the convolution."""
    match mixer:
        case GatedDeltaNet():
            return 7 * mixer.state_numbers + 2 * mixer.conv_kernel * mixer.conv_channels
        case Mamba2():
            return 5 * mixer.state_numbers + 2 * mixer.conv_kernel * mixer.conv_channels
        case _:
            return 0


def _context_kinds(mixer: Mixer, held: KVFormat) -> list[tuple[int | None, bool, int, int, int]]:
    """(limit, chunked, bytes per token, operations per pair: of one query, of many) of what one layer reads."""
    match mixer:
        case Attention():
            nbytes = mixer.kv_heads * ((mixer.key_dim + mixer.value_dim) * held.element + 2 * held.scale)
            flops = 2 * mixer.heads * (mixer.key_dim + mixer.value_dim)
            return [(mixer.limit, mixer.chunk is not None, nbytes, flops, flops)]
        case LatentAttention():
            # One query is taken into the latent space, where keys and values are the latents (the absorbed form).
            absorbed = 2 * mixer.heads * (mixer.cached_dim + mixer.latent_dim)
            expanded = 2 * mixer.heads * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim)
            index = mixer.indexer
            nbytes = kv_bytes_of_token(mixer, held) - index_bytes_of_token(mixer)
            kinds = [(index.topk if index else None, False, nbytes, absorbed, expanded)]
            if index is not None:
                flops = 2 * index.heads * index.key_dim
                kinds.append((None, False, index_bytes_of_token(mixer), flops, flops))
            return kinds
        case _:
            return []


def attended_pairs(term: ContextTerm, query_tokens: int, context: int) -> int:
    """Pairs of query and key, the queries being the last `query_tokens` of `context` tokens. Causal."""
    first = context - query_tokens  # position of the first query; it sees first + 1 tokens
    if term.limit is None:
        return query_tokens * first + query_tokens * (query_tokens + 1) // 2
    if term.chunked:
        return _chunk_pairs(context, term.limit) - _chunk_pairs(first, term.limit)
    return _window_pairs(context, term.limit) - _window_pairs(first, term.limit)


def _window_pairs(tokens: int, limit: int) -> int:
    """Of the first `tokens` queries: 1 + 2 + … up to the window, then the window each."""
    ramp = min(tokens, limit)
    return ramp * (ramp + 1) // 2 + (tokens - ramp) * limit


def _chunk_pairs(tokens: int, limit: int) -> int:
    chunks, rest = divmod(tokens, limit)
    return chunks * (limit * (limit + 1) // 2) + rest * (rest + 1) // 2
