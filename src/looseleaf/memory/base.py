"""What paged and contiguous memory have in common: geometry, tables, and the operations that move no block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.errors import AuditError, InvalidSize, UncomputedTokens
from looseleaf.memory.events import Allocate, EventStream, Free
from looseleaf.memory.interface import NO_COPIES, Blocks, SequenceId, SequenceIds, SlotUsage
from looseleaf.memory.prefix import Admission, Prefix, TokenIds
from looseleaf.memory.sizes import books_of, checked_count, checked_geometry
from looseleaf.memory.tables import BlockTables


class SequenceMemory(ABC):
    """The half of `KVMemory` that does not depend on where blocks come from.

    Arguments are checked in one order everywhere: counts, ids, duplicates, what a row can address, a free
    row, free blocks. So a call that is wrong in several ways always raises the same error.
    """

    allocator: str

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_blocks_per_seq: int | None,
        events: EventStream | None,
    ) -> None:
        geometry = checked_geometry(num_blocks, block_size, max_num_seqs, max_blocks_per_seq)
        self.num_blocks, self.block_size, self.max_num_seqs, self.max_blocks_per_seq = geometry
        self.max_tokens_per_seq = self.max_blocks_per_seq * self.block_size
        self.step = 0
        self.events = events if events is not None else EventStream()
        with books_of(f"{self.max_num_seqs} block tables of {self.max_blocks_per_seq} blocks"):
            self._tables = BlockTables(self.max_num_seqs, self.max_blocks_per_seq)

    @property
    @abstractmethod
    def num_free_blocks(self) -> int: ...

    @property
    @abstractmethod
    def _largest_possible(self) -> int:
        """Blocks that one sequence could get in the empty pool."""

    @abstractmethod
    def _fit_together(self, num_tokens: int, num_sequences: int, shared_tokens: int) -> bool:
        """`can_ever_fit` for several sequences, each of which fits alone."""

    @abstractmethod
    def blocks_for(self, num_tokens: int) -> int: ...

    @abstractmethod
    def admit(
        self, num_tokens: int, *, final_tokens: int | None = None, request_id: str = "", filled: int = 0
    ) -> SequenceId: ...

    def admit_prefix(self, prefix: Prefix, *, final_tokens: int | None = None, request_id: str = "") -> Admission:
        """Admit a sequence with the tokens of `prefix`; without a prefix cache none of it is there already."""
        seq = self.admit(len(prefix.tokens), final_tokens=final_tokens, request_id=request_id)
        return Admission(seq, 0, NO_COPIES, None)

    def register(self, seq: SequenceId, tokens: TokenIds, num_tokens: int, *, ended: bool = False) -> None:  # noqa: ARG002
        """Nothing to do without a prefix cache, but the sequence must exist."""
        self._tables.row(seq)

    @abstractmethod
    def usage(self) -> SlotUsage: ...

    @abstractmethod
    def _findings(self) -> list[str]:
        """Audit of what the subclass adds to the tables."""

    def can_ever_fit(self, num_tokens: int, *, num_sequences: int = 1, shared_tokens: int = 0) -> bool:
        """Could `num_sequences` that grow to `num_tokens` live in the empty pool, forks that have only their first
        `shared_tokens` in common?"""
        fits = self.blocks_for(num_tokens) <= self._largest_possible and num_tokens <= self.max_tokens_per_seq
        if not fits or num_sequences == 1:
            return fits
        num_sequences = checked_count("num_sequences", num_sequences)
        shared_tokens = checked_count("shared_tokens", shared_tokens, minimum=0, maximum=num_tokens)
        return num_sequences <= self.max_num_seqs and self._fit_together(num_tokens, num_sequences, shared_tokens)

    @property
    def block_tables(self) -> NDArray[np.int32]:
        """`[max_num_seqs, max_blocks_per_seq]`, row = `id & ROW_MASK`; a read-only view."""
        return _read_only(self._tables.matrix)

    @property
    def lengths(self) -> NDArray[np.int32]:
        """`[max_num_seqs]` tokens per row; a read-only view."""
        return _read_only(self._tables.lengths)

    def fill(self, seqs: SequenceIds, num_tokens: NDArray[np.int32] | int) -> None:
        """Record that the next `num_tokens >= 0` tokens of each (distinct) sequence have been computed.

        Raises `InvalidSize` when a sequence has no slots for them.
        """
        if not isinstance(num_tokens, np.ndarray):
            count = checked_count("num_tokens", num_tokens, minimum=0)
            rows = self._tables.rows(seqs)
            after = self._tables.filled.take(rows) + np.int64(count)
            if not np.count_nonzero(after > self._tables.lengths.take(rows)):
                self._tables.filled[rows] = after
                return
            num_tokens = np.asarray(count)  # too many for some: said below
        elif num_tokens.dtype.kind not in "iu":
            raise InvalidSize(f"num_tokens has dtype {num_tokens.dtype}.", hint="It must hold whole numbers.")
        rows = self._tables.rows(seqs)
        if num_tokens.ndim and num_tokens.shape != rows.shape:
            raise InvalidSize(f"num_tokens has shape {num_tokens.shape} for {len(rows)} sequences.")
        before = self._tables.filled.take(rows)
        room = self._tables.lengths.take(rows) - before
        wrong = num_tokens > room
        if num_tokens.ndim:
            wrong |= num_tokens < 0
        if np.count_nonzero(wrong):
            at = int(np.flatnonzero(wrong)[0])
            count = np.broadcast_to(num_tokens, rows.shape)[at]
            raise InvalidSize(
                f"{count} tokens of sequence {self._tables.ids(rows)[at]} were computed and {room[at]} are missing.",
                hint="Append before you fill.",
            )
        self._tables.filled[rows] = before + num_tokens

    def table(self, seq: SequenceId) -> Blocks:
        """The physical blocks of one sequence, in logical order (a copy)."""
        return self._tables.blocks(self._tables.row(seq)).copy()

    def audit(self) -> None:
        """Recompute the truth from scratch and compare; raises `AuditError` listing every difference."""
        findings = self._tables.audit(self.num_blocks, self.block_size) + self._findings()
        usage = self.usage()
        findings += [
            f"usage counts {slots} slots as {kind.name}"
            for kind in fields(usage)
            if (slots := getattr(usage, kind.name)) < 0
        ]
        if findings:
            raise AuditError(findings)

    def describe(self) -> dict[str, Any]:
        """Settings and live counts as plain values, for logs and metrics."""
        return {
            "allocator": self.allocator,
            "num_blocks": self.num_blocks,
            "block_size": self.block_size,
            "max_num_seqs": self.max_num_seqs,
            "max_blocks_per_seq": self.max_blocks_per_seq,
            "num_free_blocks": self.num_free_blocks,
            "num_sequences": len(self._tables),
        }

    def _checked_growth(self, num_tokens: int, final_tokens: int | None) -> tuple[int, int]:
        """The length of a new sequence and the length it will grow to."""
        num_tokens = checked_count("num_tokens", num_tokens)
        if final_tokens is None:
            return num_tokens, num_tokens
        return num_tokens, checked_count("final_tokens", final_tokens, minimum=num_tokens)

    def _require_addressable(self, num_tokens: int) -> None:
        if num_tokens > self.max_tokens_per_seq:
            raise InvalidSize(
                f"{num_tokens} tokens are more than the {self.max_tokens_per_seq} that a table row addresses.",
                hint="Raise max_blocks_per_seq, or shorten the sequence.",
            )

    def _grown(self, lengths: Blocks, num_tokens: int) -> Blocks:
        """The lengths after an append; `InvalidSize` if one is more than a row addresses."""
        if np.count_nonzero(lengths > self.max_tokens_per_seq - num_tokens):
            self._require_addressable(int(lengths.max()) + num_tokens)
        return lengths + num_tokens

    def _require_computed(self, row: int) -> None:
        length, filled = int(self._tables.lengths[row]), int(self._tables.filled[row])
        if filled < length:
            raise UncomputedTokens(
                f"A sequence of {length} tokens cannot be forked while only {filled} of them are computed.",
                hint="Fill, or truncate, before you fork.",
            )

    def _checked_truncation(self, seq: SequenceId, num_tokens: int) -> tuple[int, int]:
        """The row and the shorter length."""
        num_tokens = checked_count("num_tokens", num_tokens)
        row = self._tables.row(seq)
        length = int(self._tables.lengths[row])
        if num_tokens > length:
            raise InvalidSize(
                f"A sequence of {length} tokens cannot be truncated to {num_tokens}.", hint="Append makes it longer."
            )
        return row, num_tokens

    def _emit_allocate(self, seq: SequenceId, request_id: str, blocks: Blocks) -> None:
        if self.events and len(blocks):
            sequences, requests = parallel(seq, request_id, len(blocks))
            self.events.emit(Allocate(self.step, blocks.copy(), sequences, requests))

    def _emit_free(self, seq: SequenceId, request_id: str, blocks: Blocks, returned: NDArray[np.bool_]) -> None:
        if self.events and len(blocks):
            sequences, requests = parallel(seq, request_id, len(blocks))
            self.events.emit(Free(self.step, blocks, sequences, requests, returned))


def parallel(seq: SequenceId, request_id: str, count: int) -> tuple[SequenceIds, tuple[str, ...]]:
    """One sequence's entry for each of `count` blocks of an event."""
    return np.full(count, seq, np.int64), (request_id,) * count


def _read_only(array: NDArray[np.int32]) -> NDArray[np.int32]:
    view = array.view()
    view.flags.writeable = False
    return view
