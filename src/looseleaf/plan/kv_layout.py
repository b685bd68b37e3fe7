"""What the cache holds for one request: a fixed part and a slope per token, layer by layer, in whole blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from looseleaf.plan.arithmetic import (
    DTYPE_BYTES,
    ModelArithmetic,
    index_bytes_of_token,
    kv_bytes_of_token,
    state_bytes_of,
)
from looseleaf.plan.errors import InvalidPlan
from looseleaf.plan.shape import Attention, GatedDeltaNet, LatentAttention, Mamba2, Mixer

Kind: TypeAlias = Literal["full", "window", "chunk", "latent", "state"]


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that keep alike. `token_bytes` and `state_bytes` are of one layer."""

    kind: Kind
    layers: int
    token_bytes: int
    state_bytes: int
    limit: int | None
    formula: str
    """Where the bytes of one layer come from."""

    @property
    def bounded(self) -> bool:
        return self.limit is not None


class KVLayout:
    """The cache of one model (one rank of it), as an allocator of blocks of `block_size` tokens holds it.

    Layers with a window give blocks back that no later token can see, unless `keep_windows` (engines with one block
    table for all layers keep them). A step may compute up to `step_tokens` of a prompt at once, all of which see
    their own windows: such layers hold window − 1 + step_tokens tokens at worst, in one block more than these fill,
    since a window may begin within a block (as vLLM counts it); chunked layers hold chunk + step_tokens.
    """

    def __init__(
        self,
        arithmetic: ModelArithmetic,
        *,
        block_size: int = 16,
        step_tokens: int = 2048,
        keep_windows: bool = False,
    ) -> None:
        for name, value in (("block_size", block_size), ("max_num_batched_tokens", step_tokens)):
            if not 1 <= value < 2**31:
                raise InvalidPlan(f"{name} is {value}.", hint="It must be at least 1, and below 2^31.")
        self.arithmetic = arithmetic
        self.block_size = block_size
        self.step_tokens = step_tokens
        self.keep_windows = keep_windows

    @cached_property
    def groups(self) -> tuple[LayerGroup, ...]:
        """Layers that keep something, alike ones together."""
        counts = Counter(mixer for mixer in self.arithmetic.shape.mixers() if _keeps(mixer))
        return tuple(self._group(mixer, layers) for mixer, layers in counts.items())

    def _group(self, mixer: Mixer, layers: int) -> LayerGroup:
        held = self.arithmetic.kv_format
        nbytes = kv_bytes_of_token(mixer, held)
        match mixer:
            case Attention():
                limit = None if self.keep_windows else mixer.limit
                kind: Kind = "full" if limit is None else "window" if mixer.window else "chunk"
                return LayerGroup(kind, layers, nbytes, 0, limit, _attention_formula(mixer, self.arithmetic))
            case LatentAttention():
                return LayerGroup("latent", layers, nbytes, 0, None, _latent_formula(mixer, self.arithmetic))
            case GatedDeltaNet() | Mamba2():
                dtype = self.arithmetic.dtype
                formula = _state_formula(mixer, dtype)
                return LayerGroup("state", layers, 0, state_bytes_of(mixer, dtype), None, formula)

    @cached_property
    def uniform(self) -> bool:
        """Whether one block table serves all layers: every token stays in every layer that keeps anything."""
        return all(not group.bounded and group.token_bytes for group in self.groups)

    @cached_property
    def slope(self) -> int:
        """Bytes that one more token of a long context takes."""
        return sum(group.layers * group.token_bytes for group in self.groups if not group.bounded)

    @cached_property
    def bytes_per_token(self) -> int:
        """Bytes that one more token of a short context takes: in every layer."""
        return sum(group.layers * group.token_bytes for group in self.groups)

    @cached_property
    def state_bytes(self) -> int:
        """Of the recurrent states of one request."""
        return sum(group.layers * group.state_bytes for group in self.groups)

    def blocks(self, group: LayerGroup, length: int) -> int:
        """Blocks that one layer of `group` holds at worst while a request grows to `length` tokens."""
        whole = _ceil(length, self.block_size)
        if group.limit is None or not group.token_bytes:
            return whole if group.token_bytes else 0
        if group.kind == "chunk":
            return min(whole, _ceil(min(group.limit + self.step_tokens, length), self.block_size))
        return min(whole, _ceil(min(group.limit - 1 + self.step_tokens, length), self.block_size) + 1)

    def group_bytes(self, group: LayerGroup, length: int) -> int:
        """Of all layers of `group`."""
        each = self.blocks(group, length) * self.block_size * group.token_bytes + group.state_bytes
        return group.layers * each

    def request_bytes(self, length: int) -> int:
        """What a request of `length` tokens holds at worst."""
        return sum(self.group_bytes(group, length) for group in self.groups)

    def fixed_bytes(self, length: int) -> int:
        """The part of `request_bytes` that does not grow any more: windows, chunks and states."""
        return sum(self.group_bytes(group, length) for group in self.groups if group.bounded or group.state_bytes)

    @cached_property
    def block_bytes(self) -> int:
        """Of one block of the pool.

        Where all layers keep alike, a block spans them all. Otherwise one pool serves groups of equally many layers,
        and a block spans one group, with the largest layer's bytes (as in vLLM): as many layers as the rarest kind
        has, or as the most frequent one if that has fewer than 1.25 times as many.
        """
        if self.uniform:
            return self.block_size * self.bytes_per_token
        keeping = [group for group in self.groups if group.token_bytes]
        counts = [group.layers for group in keeping] or [1]
        layers = max(counts) if max(counts) < 1.25 * min(counts) else min(counts)
        return self.block_size * layers * max((group.token_bytes for group in keeping), default=1)

    @cached_property
    def shareable_unit(self) -> int:
        """Tokens in whose multiples a prefix can be shared.

        A block; beside recurrent states, a block whose tokens take in one attention layer at least what a state takes
        in its layer: engines that keep both in one pool enlarge blocks to that, and can only resume at their ends.
        """
        states = max((group.state_bytes for group in self.groups), default=0)
        token_bytes = max((group.token_bytes for group in self.groups), default=0)
        if not states or not token_bytes:
            return self.block_size
        return self.block_size * _ceil(states, self.block_size * token_bytes)

    def longest(self, nbytes: int, most: int) -> int:
        """The longest context, up to `most` tokens, of which one request fits into `nbytes`; 0 if none does."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.request_bytes(middle) <= nbytes:
                low = middle
            else:
                high = middle - 1
        return low


def most_shareable(prompt: int, unit: int) -> int:
    """Tokens of a prompt that can come from the prefix cache at most: whole units, and never the last token."""
    return max(prompt - 1, 0) // unit * unit


def _keeps(mixer: Mixer) -> bool:
    return not isinstance(mixer, Attention) or mixer.cached


def _attention_formula(mixer: Attention, arithmetic: ModelArithmetic) -> str:
    held = arithmetic.kv_format
    numbers = f"2 × {mixer.key_dim}" if mixer.key_dim == mixer.value_dim else f"({mixer.key_dim} + {mixer.value_dim})"
    scale = f" + 2 × {mixer.kv_heads} × {held.scale} B of scales" if held.scale else ""
    heads = f"{mixer.kv_heads} KV head{'s' if mixer.kv_heads != 1 else ''}"
    return f"{heads} × {numbers} × {held.element} B{scale}"


def _latent_formula(mixer: LatentAttention, arithmetic: ModelArithmetic) -> str:
    held = arithmetic.kv_format
    index = index_bytes_of_token(mixer)
    latent = (
        f"({mixer.latent_dim} + {mixer.rope_dim}) × {held.element} B" + (f" + {held.scale} B" if held.scale else "")
        if held.latent_bytes is None
        else f"{held.latent_bytes} B ({held.note})"
    )
    return latent + (f" + {index} B of index key" if index else "")


def _state_formula(mixer: GatedDeltaNet | Mamba2, dtype: str) -> str:
    size = DTYPE_BYTES[mixer.state_dtype]
    match mixer:
        case GatedDeltaNet():
            state = f"{mixer.value_heads} × {mixer.key_dim} × {mixer.value_dim} × {size} B"
        case Mamba2():
            state = f"{mixer.heads} × {mixer.head_dim} × {mixer.state_dim} × {size} B"
    return f"{state} + {mixer.conv_kernel - 1} × {mixer.conv_channels:,} × {DTYPE_BYTES[dtype]} B of convolution"


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit)
