"""The prefix cache of one pool: what each live sequence has entered in the index, and what is pinned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.errors import PinTooLarge, UnknownPin
from looseleaf.memory.interface import Blocks
from looseleaf.memory.pool import BlockPool
from looseleaf.memory.prefix import Prefix, PrefixMatch, TokenIds
from looseleaf.memory.prefix_index import NO_ENTRY, PrefixIndex
from looseleaf.memory.tables import BlockTables

_NOT_ENTERED = -1


@dataclass(slots=True)
class _Pin:
    blocks: list[int]
    entries: list[int]
    """What the blocks held when they were pinned: under pressure they may have been given to something else since."""
    expires: float


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """What the prefix cache has done since the start."""

    query_tokens: int
    """Tokens of all prompts that were looked up."""
    hit_tokens: int
    """Of them, those whose keys and values came from the cache."""
    evictions: int
    """Blocks whose content was given up for another sequence."""
    cached_blocks: int
    """Blocks without a holder whose content can be found now."""
    pinned_blocks: int


class PrefixCache:
    """Chains of live sequences by row, over an index and the pool whose blocks it names."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_pinned_share: float,
        *,
        step: Callable[[], int],
    ) -> None:
        self.block_size = block_size
        self._tips: NDArray[np.int64] = np.zeros(max_num_seqs, np.int64)
        self.index = PrefixIndex(num_blocks, block_size, step, self._tips)
        self.pool = BlockPool(num_blocks, findable=self.index.entries, on_evict=self._forget_evicted)
        self.most_pinned = math.floor(num_blocks * max_pinned_share)
        self.num_query_tokens = 0
        self.num_hit_tokens = 0
        self.evicted: list[int] = []
        """Since the manager last looked; for its events."""
        self._entered: NDArray[np.int32] = np.full(max_num_seqs, _NOT_ENTERED, np.int32)
        """By row: blocks of the sequence whose content can be found, itself or an equal one; -1: it takes no part."""
        self._keys: NDArray[np.uint64] = np.zeros(max_num_seqs, np.uint64)
        self._pins: dict[int, _Pin] = {}
        self._num_pins = 0

    def counts(self) -> CacheCounts:
        return CacheCounts(
            self.num_query_tokens,
            self.num_hit_tokens,
            self.pool.num_evictions,
            self.pool.num_cached,
            self.pool.num_pinned,
        )

    def blocks_taken(self, match: PrefixMatch, needed: int) -> int:
        """Obtainable blocks that an admission uses up: new ones, and cached ones that become active."""
        return needed - int(np.count_nonzero(self.pool.refcounts.take(match.blocks)))

    def open(self, row: int, prefix: Prefix, match: PrefixMatch) -> None:
        """A new sequence begins with what was matched."""
        self._entered[row] = len(match.blocks)
        self._tips[row] = match.tip
        self._keys[row] = match.key
        self.num_query_tokens += len(prefix.tokens)
        self.num_hit_tokens += match.num_tokens

    def leave_out(self, row: int) -> None:
        """The new sequence of this row takes no part."""
        self._entered[row] = _NOT_ENTERED

    def fork(self, row: int, child: int) -> None:
        self._entered[child] = self._entered[row]
        self._tips[child] = self._tips[row]
        self._keys[child] = self._keys[row]

    def enter(self, row: int, tokens: TokenIds, num_tokens: int, blocks: Blocks) -> Blocks:
        """Enter what is full among the first `num_tokens`; `blocks`: the row's. Returns the blocks now entered."""
        start, end = int(self._entered[row]), num_tokens // self.block_size
        if not 0 <= start < end:
            return blocks[:0]
        fresh = blocks[start:end]
        tip, key, displaced = self.index.add(
            int(self._tips[row]), int(self._keys[row]), tokens, start * self.block_size, fresh
        )
        if displaced:
            self.pool.uncache(displaced)
        self._entered[row], self._tips[row], self._keys[row] = end, tip, np.uint64(key)
        return self._with_entry(fresh)

    def enter_tail(self, row: int, tokens: TokenIds, num_tokens: int, blocks: Blocks) -> Blocks:
        """Enter the begun block of a sequence that writes no more, if nobody else may write into it."""
        start = int(self._entered[row]) * self.block_size
        if not 0 <= start < num_tokens < start + self.block_size:
            return blocks[:0]
        last = blocks[int(self._entered[row]) :][:1]
        if self.pool.refcounts[last[0]] > 1:
            return blocks[:0]
        self.index.add_tail(int(self._tips[row]), int(last[0]), tokens[start:num_tokens])
        return self._with_entry(last)

    def cut(self, row: int, num_tokens: int, filled: int, blocks: Blocks) -> None:
        """The sequence keeps `num_tokens` tokens. If it had entered more, it enters nothing from here on."""
        entered, kept = int(self._entered[row]), num_tokens // self.block_size
        if entered <= kept:
            return
        self._forget(blocks[min(filled // self.block_size, entered) : entered])
        if num_tokens % self.block_size:
            # It will be written again: even one that others hold now, should they have let go of it by then.
            self._forget(blocks[kept : kept + 1])
        self._entered[row] = _NOT_ENTERED

    def close(self, row: int, filled: int, blocks: Blocks) -> None:
        """The sequence ends. What it entered ahead of a step that was then not run is forgotten."""
        entered = int(self._entered[row])
        if entered * self.block_size > filled:
            self._forget(blocks[filled // self.block_size : entered])
        self._entered[row] = _NOT_ENTERED

    def reset(self) -> None:
        """Forget all content that nobody holds, and all pins. Running sequences keep their blocks and enter no more."""
        self._pins.clear()
        cached = self.pool.cached_blocks().tolist()
        self.index.clear()
        self.pool.uncache(cached)
        self.pool.lift_all_pins()
        self._entered.fill(_NOT_ENTERED)

    def pin(self, prefix: Prefix, expires: float) -> tuple[int, int]:
        """Pin the full blocks that hold the beginning of `prefix`; returns the pin and how many tokens it covers."""
        # One token more, as an admission never takes the last one from the cache.
        match = self.index.match(Prefix(np.append(prefix.tokens, np.int32(0)), prefix.scope))
        blocks = match.blocks.tolist()
        fresh = sum(not self.pool.is_pinned(block) for block in blocks)
        if self.pool.num_pinned + fresh > self.most_pinned:
            raise PinTooLarge(len(blocks), self.pool.num_pinned, self.most_pinned)
        self.pool.pin(blocks)
        self._num_pins += 1
        self._pins[self._num_pins] = _Pin(blocks, self.index.entries[blocks].tolist(), expires)
        return self._num_pins, match.num_full_tokens

    def unpin(self, pin_id: int) -> None:
        pin = self._pins.pop(pin_id, None)
        if pin is None:
            raise UnknownPin(f"There is no pin {pin_id}.", hint="It was never set, was lifted, or has expired.")
        entries = self.index.entries
        self.pool.unpin(
            [block for block, entry in zip(pin.blocks, pin.entries, strict=True) if entries[block] == entry]
        )

    def expire_pins(self, now: float) -> list[int]:
        """Lift the pins whose time is over; returns them."""
        over = [pin_id for pin_id, pin in self._pins.items() if pin.expires <= now]
        for pin_id in over:
            self.unpin(pin_id)
        return over

    def audit(self, tables: BlockTables) -> list[str]:
        """Differences within the index, and between it and the live sequences."""
        findings = self.index.audit()
        ahead = self._entered.astype(np.int64) * self.block_size > tables.filled
        for row in np.flatnonzero(ahead & (self._entered > 0)):
            waiting = tables.blocks(int(row))[int(tables.filled[row]) // self.block_size : int(self._entered[row])]
            findings += [
                f"row {row} has entered block {block} in an earlier step and has not computed it"
                for block in waiting[self.index.made_before(waiting)]
            ]
        return findings

    def _with_entry(self, blocks: Blocks) -> Blocks:
        entered: Blocks = blocks[self.index.entries[blocks] != NO_ENTRY]
        return entered

    def _forget(self, blocks: Blocks) -> None:
        names = blocks.tolist()
        self.index.forget(names)
        self.pool.uncache(names)

    def _forget_evicted(self, blocks: list[int]) -> None:
        self.index.forget(blocks)
        self.evicted += blocks
