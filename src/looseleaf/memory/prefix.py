"""What an admission asks of the prefix cache, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.errors import InvalidSize
from looseleaf.memory.interface import Blocks, CopyPairs, SequenceId

TokenIds: TypeAlias = NDArray[np.int32]

MAX_SCOPE_LENGTH = 4096


class Prefix:
    """The tokens of a sequence, and the scope within which its blocks may be shared.

    `scope` names everything that the validity of keys and values depends on besides the tokens: model and revision,
    KV dtype, adapter, the tenant's salt. Blocks of different scopes are never shared.
    """

    __slots__ = ("_found", "_found_in", "_keys", "_root_key", "scope", "tokens")

    def __init__(self, tokens: TokenIds, scope: str = "") -> None:
        """`tokens`: int32 `[num_tokens]`, not changed afterwards. Raises `InvalidSize`."""
        if not isinstance(tokens, np.ndarray) or tokens.dtype != np.int32 or tokens.ndim != 1 or not len(tokens):
            raise InvalidSize("The tokens of a prefix must be a one-dimensional int32 array, and at least one.")
        if len(scope) > MAX_SCOPE_LENGTH:
            raise InvalidSize(
                f"A cache scope of {len(scope)} characters is longer than {MAX_SCOPE_LENGTH}.",
                hint="Use a short salt and adapter name, or a hash of them.",
            )
        self.tokens = tokens
        self.scope = scope
        self._found: PrefixMatch | None = None
        self._found_in: tuple[int, bool] | None = None
        self._keys: NDArray[np.uint64] = _NO_KEYS
        self._root_key: int | None = None
        """Of the root from which the index has made these keys."""


_NO_KEYS: NDArray[np.uint64] = np.empty(0, np.uint64)


class Divergence(NamedTuple):
    """Where a prompt first differs from the cached sequence most like it: why it was not found further."""

    position: int
    """Index of the first token that differs."""
    cached_token: int
    """What the cached sequence has there."""


@dataclass(frozen=True, slots=True, eq=False)
class PrefixMatch:
    """The longest beginning of a prefix that the cache holds; its last token is never part of it."""

    blocks: Blocks
    """Full blocks, to be shared."""
    num_full_tokens: int
    tail: int
    """Block of which the first `num_tail_tokens` tokens go on where the full blocks end; -1: none."""
    num_tail_tokens: int
    divergence: Divergence | None
    """None when the cache holds nothing that goes on differently."""
    tip: int
    """The index entry at the end of the full blocks."""
    key: int

    @property
    def num_tokens(self) -> int:
        return self.num_full_tokens + self.num_tail_tokens


class Admission(NamedTuple):
    """A new sequence, and what of it is there already."""

    seq: SequenceId
    num_cached: int
    """Tokens whose keys and values came from the cache."""
    copies: CopyPairs
    """At most one block copy, to be carried out before the step writes anything."""
    divergence: Divergence | None
