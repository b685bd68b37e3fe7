"""What every KV-memory manager offers, paged or contiguous.

The engine, the scheduler, the replay lab and the planner are written against this protocol alone, so that
any run can be made under any allocator.

Vocabulary: a *block* is `block_size` token slots; a *block table* maps a sequence's logical blocks to
physical ones; token `t` lives at slot `table[t // block_size] * block_size + t % block_size`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from looseleaf.memory.prefix import Admission, Prefix, TokenIds

SequenceId: TypeAlias = int
"""Issued by `admit` and `fork`; `row = id & ROW_MASK`, the rest is a generation, so a stale id is caught."""

ROW_BITS = 24
ROW_MASK = (1 << ROW_BITS) - 1

SequenceIds: TypeAlias = NDArray[np.int64]
Blocks: TypeAlias = NDArray[np.int32]


class CopyPairs(NamedTuple):
    """Block copies that the kernels must carry out, in order, before the step writes anything."""

    source: Blocks
    destination: Blocks


NO_COPIES = CopyPairs(np.empty(0, np.int32), np.empty(0, np.int32))


@dataclass(frozen=True, slots=True)
class SlotUsage:
    """Where every slot of the pool is. The four kinds always add up to `total`.

    Physical slots, each counted once however many sequences share it.
    """

    total: int
    token_states: int
    """Slots that hold the key and value of a token."""
    reserved: int
    """Slots held by a sequence that it is known to use later (prompt not computed yet, announced output)."""
    internal_fragmentation: int
    """Slots held by a sequence that it will not use: the tail of its last block, or of its region."""
    free: int
    """Slots nobody holds; in a contiguous allocator also the holes too small to use (external fragmentation)."""
    largest_free_run: int
    """Longest run of free slots that one request could get; equals `free` when the allocator is paged."""
    saved_by_sharing: int
    """Slots that would be needed on top if no block were shared."""
    cached: int = 0
    """Of the free slots, those of blocks whose content the prefix cache can still give to a new sequence."""


class KVMemory(Protocol):
    """The transactions. Each happens whole, or raises a typed error and leaves no trace.

    A sequence has a *length* (tokens it has slots for) and a *filled* count (tokens whose keys and values
    have been computed, `filled <= length`).
    """

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_blocks_per_seq: int
    step: int
    """Stamped on events; the engine's loop sets it."""

    @property
    def num_free_blocks(self) -> int: ...

    @property
    def block_tables(self) -> NDArray[np.int32]:
        """`[max_num_seqs, max_blocks_per_seq]`, row = `id & ROW_MASK`. Read-only view for the kernels;
        entries beyond a row's own blocks are 0 and must not be read."""
        ...

    @property
    def lengths(self) -> NDArray[np.int32]:
        """`[max_num_seqs]` tokens per row, read-only."""
        ...

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that a sequence of `num_tokens` takes when it is admitted alone."""
        ...

    def can_ever_fit(self, num_tokens: int, *, num_sequences: int = 1, shared_tokens: int = 0) -> bool:
        """Could a sequence that grows to `num_tokens` live in the empty pool? Or `num_sequences` of them at once, forks
        that have only their first `shared_tokens` in common?"""
        ...

    def can_admit(
        self,
        num_tokens: int,
        *,
        final_tokens: int | None = None,
        keep_free: int = 0,
        prefix: Prefix | None = None,
        num_sequences: int = 1,
    ) -> bool:
        """Would `admit` (with `prefix`: `admit_prefix`) succeed now, and leave `keep_free` blocks free for sequences
        that grow later? And, with `num_sequences`, could the others fork from it right away?

        Contiguous memory ignores `keep_free`: its sequences have reserved their growth.
        """
        ...

    def admit(
        self, num_tokens: int, *, final_tokens: int | None = None, request_id: str = "", filled: int = 0
    ) -> SequenceId:
        """Give a new sequence of `num_tokens >= 1` tokens its blocks.

        `final_tokens` is the length that it will grow to as far as anyone knows; paged memory ignores it,
        contiguous allocators reserve by it. `filled` tokens are already computed (0 for a new prompt).
        """
        ...

    def admit_prefix(self, prefix: Prefix, *, final_tokens: int | None = None, request_id: str = "") -> Admission:
        """As `admit`, for a sequence whose tokens are known: what the prefix cache holds of them is filled already."""
        ...

    def register(self, seq: SequenceId, tokens: TokenIds, num_tokens: int, *, ended: bool = False) -> None:
        """Let others share the full blocks among the first `num_tokens` tokens, computed by the end of this step;
        `ended`: and the begun one, as the sequence writes no more."""
        ...

    def append(self, seqs: SequenceIds, num_tokens: int = 1) -> CopyPairs:
        """Grow each of the (distinct) sequences by `num_tokens` slots, all of them or none."""
        ...

    def appendable_steps(self, seqs: SequenceIds, most: int) -> int:
        """How many calls of `append` with these sequences and one token, and nothing in between, would succeed; at most
        `most`."""
        ...

    def append_steps(self, seqs: SequenceIds, num_steps: int) -> tuple[CopyPairs, NDArray[np.int64]]:
        """What so many calls of `append` with one token would do, all of them or none: every block comes to lie where
        it would. Returns the copies, all of the first call, and the blocks that each call takes."""
        ...

    def fill(self, seqs: SequenceIds, num_tokens: NDArray[np.int32] | int) -> None:
        """Record that the next `num_tokens` tokens of each sequence have been computed."""
        ...

    def fork(
        self, seq: SequenceId, *, request_id: str = "", final_tokens: int | None = None
    ) -> tuple[SequenceId, CopyPairs]:
        """A second sequence with the same tokens. Paged memory shares every block and copies nothing;
        contiguous memory takes a region of its own (as large as the first one's, if it is to grow as far) and
        returns the copies."""
        ...

    def truncate(self, seq: SequenceId, num_tokens: int) -> None:
        """Forget all tokens from `num_tokens` on (rejected speculation); tail blocks go back."""
        ...

    def release(self, seq: SequenceId) -> None:
        """End the sequence. Blocks that nobody else holds are free again."""
        ...

    def table(self, seq: SequenceId) -> Blocks:
        """The physical blocks of one sequence, in logical order (a copy)."""
        ...

    def usage(self) -> SlotUsage: ...

    def audit(self) -> None:
        """Recompute the truth from scratch and compare; raises `AuditError` listing every difference."""
        ...

    def describe(self) -> dict[str, Any]:
        """Settings and live counts as plain values, for logs and metrics."""
        ...
