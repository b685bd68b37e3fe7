"""Paged memory: blocks are taken as tokens need them, shared by forks, and copied on the first write."""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

from looseleaf.errors import ConfigurationError
from looseleaf.memory.base import SequenceMemory, parallel
from looseleaf.memory.errors import InvalidSize, OutOfBlocks
from looseleaf.memory.events import Allocate, Copy, EventStream, Evict, Register, Share
from looseleaf.memory.growth import Growth, plan_growth, possible_steps
from looseleaf.memory.interface import NO_COPIES, Blocks, CopyPairs, SequenceId, SequenceIds, SlotUsage
from looseleaf.memory.prefix import Admission, Prefix, PrefixMatch, TokenIds
from looseleaf.memory.prefix_cache import CacheCounts, PrefixCache
from looseleaf.memory.sizes import books_of, checked_count
from looseleaf.memory.tables import Rows

DEFAULT_PINNED_SHARE = 0.25


class BlockManager(SequenceMemory):
    """The transactions of paged attention (Kwon et al. 2023, §4) over a pool and the block tables.

    A sequence holds exactly the blocks that its tokens begin to fill. Slots that still wait for their token
    (`filled` to `length`) are always in blocks that no other sequence holds.
    """

    allocator = "paged"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_blocks_per_seq: int | None = None,
        *,
        max_pinned_share: float = DEFAULT_PINNED_SHARE,
        events: EventStream | None = None,
    ) -> None:
        super().__init__(num_blocks, block_size, max_num_seqs, max_blocks_per_seq, events)
        if not 0 <= max_pinned_share <= 1:
            raise ConfigurationError(f"max_pinned_share is {max_pinned_share} but must be between 0 and 1.")
        with books_of(f"a pool of {self.num_blocks} blocks"):
            self._prefixes = PrefixCache(
                self.num_blocks, self.block_size, self.max_num_seqs, max_pinned_share, step=lambda: self.step
            )
        self._pool = self._prefixes.pool

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """ceil(num_tokens / block_size)."""
        return -(-checked_count("num_tokens", num_tokens, maximum=sys.maxsize) // self.block_size)

    @property
    def _largest_possible(self) -> int:
        return self.num_blocks

    def _fit_together(self, num_tokens: int, num_sequences: int, shared_tokens: int) -> bool:
        if shared_tokens == num_tokens:
            return True
        shared = shared_tokens // self.block_size
        return shared + num_sequences * (self.blocks_for(num_tokens) - shared) <= self.num_blocks

    def can_admit(
        self,
        num_tokens: int,
        *,
        final_tokens: int | None = None,
        keep_free: int = 0,
        prefix: Prefix | None = None,
        num_sequences: int = 1,
    ) -> bool:
        """Would `admit` (with `prefix`: `admit_prefix`) succeed now and leave `keep_free` blocks free? Further
        sequences that fork from it take only rows."""
        num_tokens, _ = self._checked_growth(num_tokens, final_tokens)
        keep_free = checked_count("keep_free", keep_free, minimum=0)
        if num_tokens > self.max_tokens_per_seq or self._tables.num_free_rows < num_sequences:
            return False
        needed = self.blocks_for(num_tokens)
        if prefix is not None and needed + keep_free > self._pool.num_free:
            needed = self._prefixes.blocks_taken(self._prefixes.index.match(prefix), needed)
        return needed + keep_free <= self._pool.num_free

    def admit(
        self, num_tokens: int, *, final_tokens: int | None = None, request_id: str = "", filled: int = 0
    ) -> SequenceId:
        """Give a new sequence of `num_tokens >= 1` tokens its blocks; `filled` of them are already computed.

        Raises `InvalidSize`, `OutOfRows` or `OutOfBlocks`.
        """
        num_tokens, _ = self._checked_growth(num_tokens, final_tokens)
        filled = checked_count("filled", filled, minimum=0, maximum=num_tokens)
        self._require_addressable(num_tokens)
        self._tables.require_row()
        needed = self.blocks_for(num_tokens)
        self._require_free(needed)
        blocks = self._pool.allocate(needed)
        seq = self._tables.open(blocks, num_tokens, filled, request_id)
        self._prefixes.leave_out(self._tables.row(seq))
        self._emit_evictions()
        self._emit_allocate(seq, request_id, blocks)
        return seq

    def admit_prefix(self, prefix: Prefix, *, final_tokens: int | None = None, request_id: str = "") -> Admission:
        """Give a new sequence with the tokens of `prefix` its blocks, those in the cache shared.

        Full blocks are shared; of the block after them, what is the same is taken over by copying it. The last token
        is never cached: somebody must compute what follows it. Raises `InvalidSize`, `OutOfRows` or `OutOfBlocks`.
        """
        num_tokens, _ = self._checked_growth(len(prefix.tokens), final_tokens)
        self._require_addressable(num_tokens)
        self._tables.require_row()
        match = self._prefixes.index.match(prefix)
        needed = self.blocks_for(num_tokens)
        self._require_free(self._prefixes.blocks_taken(match, needed))
        self._pool.share(match.blocks)  # before anything is evicted
        fresh = self._pool.allocate(needed - len(match.blocks))
        seq = self._tables.open(np.concatenate([match.blocks, fresh]), num_tokens, match.num_tokens, request_id)
        self._prefixes.open(self._tables.row(seq), prefix, match)
        copies = NO_COPIES
        if match.num_tail_tokens:
            copies = CopyPairs(np.array([match.tail], np.int32), fresh[:1].copy())
        self._emit_evictions()
        if self.events:
            if len(match.blocks):
                sequences, requests = parallel(seq, request_id, len(match.blocks))
                self.events.emit(Share(self.step, match.blocks.copy(), sequences, requests, -1))
            copied = len(copies.source)
            if copied:
                sequences, requests = parallel(seq, request_id, copied)
                self.events.emit(Copy(self.step, copies.destination.copy(), sequences, requests, copies.source.copy()))
            self._emit_allocate(seq, request_id, fresh[copied:])
        return Admission(seq, match.num_tokens, copies, match.divergence)

    def register(self, seq: SequenceId, tokens: TokenIds, num_tokens: int, *, ended: bool = False) -> None:
        """Let others find the full blocks among the first `num_tokens` tokens of a sequence that began by
        `admit_prefix` (of others, nothing).

        `tokens`: int32, all its tokens from the first on (more do no harm). They must be computed, or be computed in
        this step: whoever is admitted in the same step may share them already. `ended`: it writes no more, so the
        begun block too. Raises `UnknownSequence`, or `InvalidSize` for more tokens than it has.
        """
        tables = self._tables
        row = tables.row(seq)
        num_tokens = checked_count("num_tokens", num_tokens, minimum=0, maximum=int(tables.lengths[row]))
        if len(tokens) < num_tokens:
            raise InvalidSize(f"{len(tokens)} tokens are given, but {num_tokens} are to be registered.")
        blocks = tables.blocks(row)
        entered = self._prefixes.enter(row, tokens, num_tokens, blocks)
        if ended:
            entered = np.concatenate([entered, self._prefixes.enter_tail(row, tokens, num_tokens, blocks)])
        if self.events and len(entered):
            sequences, requests = parallel(seq, tables.request_ids[row], len(entered))
            self.events.emit(Register(self.step, entered.copy(), sequences, requests))

    def lookup(self, prefix: Prefix) -> PrefixMatch:
        """What the cache holds of `prefix`, changing nothing."""
        return self._prefixes.index.match(prefix)

    def reset_prefix_cache(self) -> None:
        """Forget all cached content and all pins. Safe at any time: running sequences keep their blocks, and what they
        compute from here on is not cached."""
        self._prefixes.reset()

    def pin(self, prefix: Prefix, *, expires: float = math.inf) -> tuple[int, int]:
        """Keep the cached full blocks of `prefix` from eviction until `unpin`, or `expire_pins` at `expires`.

        Returns the pin and the tokens that it covers. Under pressure pins give way, oldest first, before a request
        has to wait. Raises `PinTooLarge` beyond `max_pinned_share` of the pool.
        """
        return self._prefixes.pin(prefix, expires)

    def unpin(self, pin_id: int) -> None:
        """Lift a pin. Raises `UnknownPin`."""
        self._prefixes.unpin(pin_id)

    def expire_pins(self, now: float) -> list[int]:
        """Lift the pins whose time is over; returns them."""
        return self._prefixes.expire_pins(now)

    def cached_blocks(self) -> Blocks:
        """The blocks that nobody holds and whose content can be found, in the order in which they will be evicted."""
        return self._prefixes.pool.cached_blocks()

    def cache_counts(self) -> CacheCounts:
        return self._prefixes.counts()

    def append(self, seqs: SequenceIds, num_tokens: int = 1) -> CopyPairs:
        """Grow each of the (distinct) sequences by `num_tokens >= 1` slots, all of them or none.

        A sequence whose new tokens begin in a block that another one holds too gets a copy of that block;
        when all holders of a block grow in one call, the last of them keeps the original.
        Raises `InvalidSize`, `UnknownSequence`, `DuplicateSequence` or `OutOfBlocks`.
        """
        growth = self._plan_growth(seqs, num_tokens)
        if growth.needed == 0:
            self._tables.lengths[growth.rows] = growth.lengths
            return NO_COPIES
        return self._grow(growth, *growth.entries())

    def appendable_steps(self, seqs: SequenceIds, most: int) -> int:
        """How many calls of `append` with these sequences and one token would succeed; at most `most`."""
        most = checked_count("most", most)
        rows = self._tables.rows(seqs)
        if not len(rows):
            return most
        most = min(most, self.max_tokens_per_seq - int(np.maximum.reduce(self._tables.lengths.take(rows))))
        # Each copies one block at most, takes one at once at most, and then one every `block_size` steps.
        if self._pool.num_free >= len(rows) * (most // self.block_size + 2):
            return most
        return possible_steps(
            plan_growth(self._tables, self._pool, self.block_size, rows, 1), self._pool.num_free, most
        )

    def append_steps(self, seqs: SequenceIds, num_steps: int) -> tuple[CopyPairs, NDArray[np.int64]]:
        """What so many calls of `append` with one token would do, all of them or none; each block comes to lie where
        it would.

        Returns the copies, all of the first call, and the blocks that each call takes. Raises what `append` does.
        """
        growth = self._plan_growth(seqs, num_steps)
        if growth.needed == 0:
            self._tables.lengths[growth.rows] = growth.lengths
            return NO_COPIES, np.zeros(num_steps, np.int64)
        owners, columns = growth.entries()
        # A block is begun by the call that appends its first token.
        calls = columns * self.block_size - self._tables.lengths.take(owners)
        order = calls.argsort(kind="stable")
        copies = self._grow(growth, owners[order], columns[order])
        taken: NDArray[np.int64] = np.bincount(calls, minlength=num_steps)
        taken[0] += len(copies.source)
        return copies, taken

    def fork(
        self, seq: SequenceId, *, request_id: str = "", final_tokens: int | None = None
    ) -> tuple[SequenceId, CopyPairs]:
        """A second sequence with the same tokens, which shares every block; there is nothing to copy yet.

        Raises `UnknownSequence`, `UncomputedTokens` or `OutOfRows`.
        """
        tables = self._tables
        row = tables.row(seq)
        length = int(tables.lengths[row])
        if final_tokens is not None:
            checked_count("final_tokens", final_tokens, minimum=length)
        self._require_computed(row)
        tables.require_row()
        blocks = tables.blocks(row).copy()
        self._pool.share(blocks)
        child = tables.open(blocks, length, length, request_id)
        self._prefixes.fork(row, tables.row(child))
        if self.events:
            sequences, requests = parallel(child, request_id, len(blocks))
            self.events.emit(Share(self.step, blocks, sequences, requests, seq))
        return child, NO_COPIES

    def truncate(self, seq: SequenceId, num_tokens: int) -> None:
        """Forget all tokens from `num_tokens >= 1` on; blocks that are left without a token are given up.

        Raises `UnknownSequence`, or `InvalidSize` when the sequence is shorter.
        """
        row, num_tokens = self._checked_truncation(seq, num_tokens)
        tables = self._tables
        kept = self.blocks_for(num_tokens)
        self._prefixes.cut(row, num_tokens, int(tables.filled[row]), tables.blocks(row))
        dropped = tables.blocks(row)[kept:].copy()
        returned = self._pool.drop(dropped)
        tables.blocks(row)[kept:] = 0
        tables.num_blocks[row] = kept
        tables.lengths[row] = num_tokens
        tables.filled[row] = min(num_tokens, int(tables.filled[row]))
        self._emit_free(seq, tables.request_ids[row], dropped, returned)

    def release(self, seq: SequenceId) -> None:
        """End the sequence. Blocks that nobody else holds are free again. Raises `UnknownSequence`."""
        row = self._tables.row(seq)
        blocks = self._tables.blocks(row).copy()
        request_id = self._tables.request_ids[row]
        self._prefixes.close(row, int(self._tables.filled[row]), blocks)
        returned = self._pool.drop(blocks)
        self._tables.close(row)
        self._emit_free(seq, request_id, blocks, returned)

    def usage(self) -> SlotUsage:
        """Where every slot is; O(sequences), and O(held blocks) while a block is shared that is not full yet."""
        tables, size = self._tables, self.block_size
        held = self.num_blocks - self._pool.num_free
        tokens = int(np.add.reduce(tables.filled, dtype=np.int64))
        begun = int(np.add.reduce(tables.lengths, dtype=np.int64))
        shared = self._pool.num_shared
        if shared and self._only_full_are_shared():
            tokens -= shared * size
            begun -= shared * size
        elif shared:
            # Holders of a block may reach differently far into it: it holds what the furthest of them has there. But
            # while one of them computes it, in the very step in which others share it already, only what that one has.
            rows, columns, blocks = tables.entries()
            starts = columns * size
            filled = np.clip(tables.filled[rows] - starts, 0, size)
            length = np.minimum(tables.lengths[rows] - starts, size)
            physical, of = np.unique(blocks, return_inverse=True)
            reach = np.zeros((2, len(physical)), np.int64)
            np.maximum.at(reach[0], of, filled)
            np.maximum.at(reach[1], of, length)
            computing = filled < length
            np.minimum.at(reach[0], of[computing], filled[computing])
            tokens, begun = (int(total) for total in reach.sum(axis=1))
        free = self._pool.num_free * size
        return SlotUsage(
            total=self.num_blocks * size,
            token_states=tokens,
            reserved=begun - tokens,
            internal_fragmentation=held * size - begun,
            free=free,
            largest_free_run=free,
            saved_by_sharing=shared * size,
            cached=self._pool.num_cached * size,
        )

    def _only_full_are_shared(self) -> bool:
        """No sequence has a block that another one holds too and that it has not filled itself."""
        tables = self._tables
        rows = tables.live_rows()
        full = tables.filled.take(rows) // self.block_size
        left = tables.num_blocks.take(rows) - full
        starts = rows * tables.width + full
        if len(rows) and int(np.maximum.reduce(left)) > 1:
            offsets = np.arange(int(np.add.reduce(left))) - np.repeat(left.cumsum() - left, left)
            entries = np.repeat(starts, left) + offsets
        else:
            entries = starts[left > 0]
        return not np.count_nonzero(self._pool.refcounts.take(tables.flat.take(entries)) > 1)

    def _require_free(self, needed: int) -> None:
        if needed > self._pool.num_free:
            raise OutOfBlocks(needed, self._pool.num_free)

    def _plan_growth(self, seqs: SequenceIds, num_tokens: int) -> Growth:
        """Everything that `append` would do, changing nothing."""
        num_tokens = checked_count("num_tokens", num_tokens)
        rows = self._tables.rows(seqs)
        growth = plan_growth(self._tables, self._pool, self.block_size, rows, num_tokens)
        if np.count_nonzero(growth.lengths > self.max_tokens_per_seq):
            self._require_addressable(int(growth.lengths.max()))
        return growth

    def _grow(self, growth: Growth, owners: Rows, columns: Rows) -> CopyPairs:
        """Carry it out; the blocks that are appended are taken in the order of `owners` and `columns`."""
        tables = self._tables
        self._require_free(growth.needed)
        taken = self._pool.allocate(growth.needed)
        copies = NO_COPIES
        num_copies = len(growth.copied)
        if num_copies:
            copies = CopyPairs(growth.copied, taken[:num_copies])
            tables.flat[growth.copy_at] = copies.destination
            self._pool.unshare(copies.source)
        fresh = taken[num_copies:]
        if len(fresh):
            tables.flat[owners * tables.width + columns] = fresh
            tables.num_blocks[growth.rows] += growth.missing
        tables.lengths[growth.rows] = growth.lengths
        self._emit_evictions()
        if self.events:
            self._emit_growth(copies, growth.copy_at // tables.width, fresh, owners)
        return copies

    def _emit_evictions(self) -> None:
        evicted = self._prefixes.evicted
        if evicted and self.events:
            blocks = np.array(evicted, np.int32)
            self.events.emit(Evict(self.step, blocks, np.full(len(blocks), -1, np.int64), ("",) * len(blocks)))
        evicted.clear()

    def _emit_growth(self, copies: CopyPairs, copy_rows: Rows, fresh: Blocks, fresh_rows: Rows) -> None:
        names = self._tables.request_ids
        if len(copies.source):
            requests = tuple(names[row] for row in copy_rows)
            sequences = self._tables.ids(copy_rows)
            self.events.emit(Copy(self.step, copies.destination.copy(), sequences, requests, copies.source.copy()))
        if len(fresh):
            requests = tuple(names[row] for row in fresh_rows)
            self.events.emit(Allocate(self.step, fresh, self._tables.ids(fresh_rows), requests))

    def _findings(self) -> list[str]:
        tables, size = self._tables, self.block_size
        findings = [
            f"row {row} has {tables.num_blocks[row]} blocks for {tables.lengths[row]} tokens"
            for row in np.flatnonzero(tables.num_blocks != -(-tables.lengths // size))
        ]
        rows, columns, blocks = tables.entries()
        inside = (blocks >= 0) & (blocks < self.num_blocks)
        rows, columns, blocks = rows[inside], columns[inside], blocks[inside]
        holders = np.bincount(blocks, minlength=self.num_blocks)
        findings += self._pool.audit(holders) + self._prefixes.audit(tables)
        pending = (tables.filled[rows] < (columns + 1) * size) & (tables.lengths[rows] > columns * size)
        pending &= tables.filled[rows] < tables.lengths[rows]
        # What is computed in this very step may be shared already; its owner alone writes it.
        entered = self._prefixes.index.entries[blocks] != 0
        for entry in np.flatnonzero(pending & (holders[blocks] > 1) & ~entered):
            findings.append(f"row {rows[entry]} will write into block {blocks[entry]}, which another sequence holds")
        return findings
