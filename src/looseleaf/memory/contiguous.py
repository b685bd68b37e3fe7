"""Contiguous memory: each sequence reserves one region for its whole life, as engines did before paging.

The three reservations are the baselines of the PagedAttention paper (Kwon et al. 2023, §6.1): Orca (Max),
Orca (Pow2) and Orca (Oracle). They waste what paging saves, and are here so that the gain can be measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.base import SequenceMemory, parallel
from looseleaf.memory.errors import OutOfBlocks, RegionFull
from looseleaf.memory.events import Copy, EventStream
from looseleaf.memory.interface import NO_COPIES, Blocks, CopyPairs, SequenceId, SequenceIds, SlotUsage
from looseleaf.memory.prefix import Prefix
from looseleaf.memory.regions import BuddyRegions, FirstFit, Placement, Region
from looseleaf.memory.sizes import checked_count, checked_setting


@dataclass(frozen=True, slots=True)
class Reservation:
    """How much a sequence reserves, and how its region is placed."""

    name: str
    tokens: Callable[[int, int, int], int]
    """(tokens now, tokens in the end, longest sequence) → tokens reserved; at least the tokens in the end."""
    placement: Callable[[int], Placement]
    """Number of blocks of the pool → an empty pool of regions."""


def _maximum(_num_tokens: int, final_tokens: int, max_model_len: int) -> int:
    return max(max_model_len, final_tokens)


def _power_of_two(num_tokens: int, final_tokens: int, max_model_len: int) -> int:
    remaining = final_tokens - num_tokens
    reserved = num_tokens + (1 << (remaining - 1).bit_length() if remaining else 0)
    return max(min(reserved, max_model_len), final_tokens)


def _oracle(_num_tokens: int, final_tokens: int, _max_model_len: int) -> int:
    return final_tokens


RESERVE_MAX = Reservation("contiguous-max", _maximum, FirstFit)
RESERVE_POW2 = Reservation("contiguous-pow2", _power_of_two, BuddyRegions)
RESERVE_ORACLE = Reservation("contiguous-oracle", _oracle, FirstFit)


class ContiguousManager(SequenceMemory):
    """`KVMemory` over regions of consecutive blocks.

    A region is a whole number of blocks, and its row of the block tables simply counts up, so the kernels
    need not know. `max_model_len` (default: what a row addresses) is the longest sequence, and what
    `RESERVE_MAX` reserves. A sequence without `final_tokens` is taken not to grow.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_blocks_per_seq: int | None = None,
        *,
        reservation: Reservation,
        max_model_len: int | None = None,
        events: EventStream | None = None,
    ) -> None:
        super().__init__(num_blocks, block_size, max_num_seqs, max_blocks_per_seq, events)
        self.allocator = reservation.name
        if max_model_len is None:
            max_model_len = self.max_tokens_per_seq
        self.max_model_len = checked_setting("max_model_len", max_model_len, maximum=self.max_tokens_per_seq)
        self._reservation = reservation
        self._placement = reservation.placement(self.num_blocks)
        self._regions: dict[int, Region] = {}
        self._final: NDArray[np.int32] = np.zeros(self.max_num_seqs, np.int32)

    @property
    def num_free_blocks(self) -> int:
        """Free blocks, whether or not they lie together."""
        return self._placement.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of the region of a sequence that is admitted with `num_tokens` and does not grow."""
        num_tokens = checked_count("num_tokens", num_tokens, maximum=sys.maxsize)
        return self._region_blocks(num_tokens, num_tokens)

    @property
    def _largest_possible(self) -> int:
        return self._placement.largest_possible

    def _fit_together(self, num_tokens: int, num_sequences: int, shared_tokens: int) -> bool:
        # Forks are as large as the first, which may be admitted anew at any length after a preemption. What rounding
        # to a power of two adds is most just beyond one.
        lengths = {num_tokens - (1 << k) - 1 for k in range(num_tokens.bit_length())} | {num_tokens, shared_tokens}
        largest = max(self._region_blocks(length, num_tokens) for length in lengths if length >= max(shared_tokens, 1))
        return largest <= self._placement.largest_possible and num_sequences <= self.num_blocks // largest

    def can_admit(
        self,
        num_tokens: int,
        *,
        final_tokens: int | None = None,
        keep_free: int = 0,
        prefix: Prefix | None = None,  # noqa: ARG002 (nothing is shared here)
        num_sequences: int = 1,
    ) -> bool:
        """Are there holes for the regions now? Every region holds all its growth, so `keep_free` has no use here."""
        num_tokens, final = self._checked_growth(num_tokens, final_tokens)
        checked_count("keep_free", keep_free, minimum=0)
        if final > self.max_tokens_per_seq or self._tables.num_free_rows < num_sequences:
            return False
        needed = self._region_blocks(num_tokens, final)
        if num_sequences == 1:
            return needed <= self._placement.largest_hole
        return sum(hole.blocks // needed for hole in self._placement.holes()) >= num_sequences

    def admit(
        self, num_tokens: int, *, final_tokens: int | None = None, request_id: str = "", filled: int = 0
    ) -> SequenceId:
        """Reserve the region of a new sequence of `num_tokens >= 1` tokens, `filled` of them already computed.

        Raises `InvalidSize`, `OutOfRows`, or `OutOfBlocks` when no hole is large enough.
        """
        num_tokens, final = self._checked_growth(num_tokens, final_tokens)
        filled = checked_count("filled", filled, minimum=0, maximum=num_tokens)
        seq, blocks = self._open(num_tokens, final, filled, request_id)
        self._emit_allocate(seq, request_id, blocks)
        return seq

    def append(self, seqs: SequenceIds, num_tokens: int = 1) -> CopyPairs:
        """Grow each of the (distinct) sequences by `num_tokens >= 1` slots of its region, all of them or none.

        Raises `InvalidSize`, `UnknownSequence`, `DuplicateSequence` or `RegionFull`.
        """
        num_tokens = checked_count("num_tokens", num_tokens)
        rows = self._tables.rows(seqs)
        lengths = self._grown(self._tables.lengths.take(rows), num_tokens)
        held = self._tables.num_blocks.take(rows)
        beyond = np.flatnonzero(lengths > held * self.block_size)
        if len(beyond):
            at = beyond[0]
            raise RegionFull(int(-(-lengths[at] // self.block_size) - held[at]), int(held[at]))
        self._tables.lengths[rows] = lengths
        return NO_COPIES

    def appendable_steps(self, seqs: SequenceIds, most: int) -> int:
        """How many calls of `append` with these sequences and one token would succeed; at most `most`."""
        most = checked_count("most", most)
        rows = self._tables.rows(seqs)
        if len(rows) == 0:
            return most
        lengths = self._tables.lengths.take(rows)
        room = self._tables.num_blocks.take(rows).astype(np.int64) * self.block_size - lengths
        return min(most, int(room.min()), self.max_tokens_per_seq - int(lengths.max()))

    def append_steps(self, seqs: SequenceIds, num_steps: int) -> tuple[CopyPairs, NDArray[np.int64]]:
        """What so many calls of `append` with one token would do; the regions have the blocks already."""
        copies = self.append(seqs, num_steps)
        return copies, np.zeros(num_steps, np.int64)

    def fork(
        self, seq: SequenceId, *, request_id: str = "", final_tokens: int | None = None
    ) -> tuple[SequenceId, CopyPairs]:
        """A second sequence with the same tokens in a region of its own, and the copies of the blocks that hold them.

        Without `final_tokens` it will grow as far as the first, and one that does has a region as large. So whoever
        gives up one of such forks can fork another of them instead. Raises `UnknownSequence`, `InvalidSize`,
        `UncomputedTokens`, `OutOfRows` or `OutOfBlocks`.
        """
        tables = self._tables
        row = tables.row(seq)
        length = int(tables.lengths[row])
        final = int(self._final[row]) if final_tokens is None else final_tokens
        final = checked_count("final_tokens", final, minimum=length)
        self._require_computed(row)
        as_large = self._regions[row].blocks if final == self._final[row] else None
        child, blocks = self._open(length, final, length, request_id, as_large)
        used = -(-length // self.block_size)
        copies = CopyPairs(tables.blocks(row)[:used].copy(), blocks[:used].copy())
        if self.events:
            sequences, requests = parallel(child, request_id, used)
            self.events.emit(Copy(self.step, copies.destination.copy(), sequences, requests, copies.source.copy()))
        self._emit_allocate(child, request_id, blocks[used:])
        return child, copies

    def truncate(self, seq: SequenceId, num_tokens: int) -> None:
        """Forget all tokens from `num_tokens >= 1` on; the region stays reserved.

        Raises `UnknownSequence`, or `InvalidSize` when the sequence is shorter.
        """
        row, num_tokens = self._checked_truncation(seq, num_tokens)
        self._tables.lengths[row] = num_tokens
        self._tables.filled[row] = min(num_tokens, int(self._tables.filled[row]))

    def release(self, seq: SequenceId) -> None:
        """End the sequence; its region is a hole. Raises `UnknownSequence`."""
        row = self._tables.row(seq)
        region = self._regions.pop(row)
        blocks = region.block_ids()
        request_id = self._tables.request_ids[row]
        self._placement.free(region)
        self._tables.close(row)
        self._final[row] = 0
        self._emit_free(seq, request_id, blocks, np.ones(len(blocks), np.bool_))

    def usage(self) -> SlotUsage:
        """Where every slot is; O(sequences + holes)."""
        size = self.block_size
        tokens = int(self._tables.filled.sum(dtype=np.int64))
        wanted = int(np.maximum(self._final, self._tables.lengths).sum(dtype=np.int64))
        held = self.num_blocks - self._placement.num_free
        return SlotUsage(
            total=self.num_blocks * size,
            token_states=tokens,
            reserved=wanted - tokens,
            internal_fragmentation=held * size - wanted,
            free=self._placement.num_free * size,
            largest_free_run=self._placement.largest_hole * size,
            saved_by_sharing=0,
        )

    def region(self, seq: SequenceId) -> Region:
        """The sequence's region; it may be longer than its table where rounding exceeds what a row addresses."""
        return self._regions[self._tables.row(seq)]

    def _region_blocks(self, num_tokens: int, final_tokens: int) -> int:
        """Size of the region, reduced to the largest that the pool could ever give if that still does for the end."""
        reserved = self._reservation.tokens(num_tokens, final_tokens, self.max_model_len)
        blocks = self._placement.rounded(-(-reserved // self.block_size))
        exact = self._placement.rounded(-(-final_tokens // self.block_size))
        return max(exact, min(blocks, self._placement.largest_possible))

    def _open(
        self, num_tokens: int, final: int, filled: int, request_id: str, region_blocks: int | None = None
    ) -> tuple[SequenceId, Blocks]:
        """The new sequence and all blocks of its region, of which its row lists what it can address."""
        self._require_addressable(final)
        self._tables.require_row()
        needed = region_blocks or self._region_blocks(num_tokens, final)
        region = self._placement.allocate(needed)
        if region is None:
            raise OutOfBlocks(
                needed,
                self._placement.num_free,
                hint=f"They must lie together and the largest hole has {self._placement.largest_hole} blocks.",
            )
        blocks = region.block_ids()
        seq = self._tables.open(blocks[: self.max_blocks_per_seq], num_tokens, filled, request_id)
        row = self._tables.row(seq)
        self._regions[row] = region
        self._final[row] = final
        return seq, blocks

    def _findings(self) -> list[str]:
        tables = self._tables
        live = tables.live_rows().tolist()
        findings = self._placement.audit()
        if sorted(self._regions) != live:
            findings.append(f"rows {live} are live but regions exist for {sorted(self._regions)}")
        for row in live:
            if (region := self._regions.get(row)) is None:
                continue
            expected = region.block_ids()[: self.max_blocks_per_seq]
            if not np.array_equal(tables.blocks(row), expected):
                findings.append(f"row {row} does not list the blocks of its {region}")
            if not 1 <= self._final[row] <= len(expected) * self.block_size:
                findings.append(f"row {row} expects {self._final[row]} tokens in its {region}")
        expecting = np.flatnonzero(self._final).tolist()
        findings += [f"row {row} is dead but expects {self._final[row]} tokens" for row in expecting if row not in live]
        end = 0
        pieces = sorted([*self._regions.values(), *self._placement.holes()])
        for piece in [*pieces, Region(self.num_blocks, 0)]:
            if piece.start < end:
                findings.append(f"block {piece.start} is in {piece} and in the region or hole before it")
            elif piece.start > end:
                findings.append(f"blocks {end} to {piece.start - 1} are leaked: in no region and no hole")
            end = max(end, piece.end)
        free = sum(hole.blocks for hole in self._placement.holes())
        if free != self._placement.num_free:
            findings.append(f"the holes have {free} blocks but {self._placement.num_free} are said to be free")
        return findings
