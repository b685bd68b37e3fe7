"""The state of every physical block: how many sequences hold it, and who may have it next."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.interface import Blocks


class BlockPool:
    """Reference counts, the free stack, and the order of eviction.

    A block is *active* (count ≥ 1), or *cached* (count 0, content still findable), or *free* (count 0, on the stack).
    A cached block may be *pinned*: it is not evicted while anything else is left. All but the active ones are
    obtainable. Every method costs O(blocks named), whatever the size of the pool. Callers check the arguments: the
    pool's methods are steps of a transaction that has already been found possible.
    """

    def __init__(self, num_blocks: int, *, findable: NDArray[np.int64], on_evict: Callable[[list[int]], None]) -> None:
        """`findable`: by block, nonzero while its content can be found. `on_evict` is told of blocks whose content is
        given up, before they are handed out."""
        self.num_blocks = num_blocks
        self.num_references = 0
        """Sum of all reference counts."""
        self.refcounts: NDArray[np.int32] = np.zeros(num_blocks, np.int32)
        self.num_evictions = 0
        # The top of the stack is at _num_unused - 1: a fresh pool hands out block 0 first.
        self._free: NDArray[np.int32] = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)
        self._num_unused = num_blocks
        self._findable = findable
        self._on_evict = on_evict
        self._cached: OrderedDict[int, None] = OrderedDict()
        """Evicted from the front: released longest ago, and of one sequence its end before its beginning."""
        self._pins: dict[int, int] = {}
        """By pinned block: how many pins name it."""
        self._idle_pinned: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that can be had: those without content, and those whose content nobody uses."""
        return self._num_unused + len(self._cached) + len(self._idle_pinned)

    @property
    def num_cached(self) -> int:
        """Of the free blocks, those whose content can still be found."""
        return len(self._cached) + len(self._idle_pinned)

    @property
    def num_pinned(self) -> int:
        return len(self._pins)

    @property
    def num_shared(self) -> int:
        """Blocks that would be needed on top if none were shared."""
        return self.num_references - (self.num_blocks - self.num_free)

    def allocate(self, count: int) -> Blocks:
        """Take `count <= num_free` blocks, each with reference count 1: unused ones first, then the oldest cached."""
        unused = min(count, self._num_unused)
        bottom = self._num_unused - unused
        blocks = self._free[bottom : self._num_unused][::-1].copy()
        self._num_unused = bottom
        if unused < count:
            blocks = np.concatenate([blocks, np.array(self._evict(count - unused), np.int32)])
        self.num_references += count
        self.refcounts[blocks] = 1
        return blocks

    def share(self, blocks: Blocks) -> None:
        """One more holder for each of the (distinct, active or cached) blocks."""
        counts = self.refcounts.take(blocks)
        if not counts.all():
            self._take_idle(blocks[counts == 0].tolist())
        self.refcounts[blocks] = counts + np.int32(1)
        self.num_references += len(blocks)

    def unshare(self, blocks: Blocks) -> None:
        """One holder less each time a block is named; at least one must remain."""
        np.subtract.at(self.refcounts, blocks, 1)
        self.num_references -= len(blocks)

    def drop(self, blocks: Blocks) -> NDArray[np.bool_]:
        """One holder less for each of the (distinct) blocks, given in logical order; says which nobody holds now."""
        counts = self.refcounts.take(blocks) - np.int32(1)
        self.refcounts[blocks] = counts
        self.num_references -= len(blocks)
        freed: NDArray[np.bool_] = counts == 0
        # Last block first: the next allocation gets them in logical order, and ends are evicted before beginnings.
        returned = blocks[freed][::-1]
        kept = self._findable.take(returned) != 0
        if kept.any():
            idle = returned[kept].tolist()
            if self._pins:
                self._idle_pinned.update((block, None) for block in idle if block in self._pins)
                idle = [block for block in idle if block not in self._pins]
            self._cached.update(dict.fromkeys(idle))
            returned = returned[~kept]
        self._push(returned)
        return freed

    def uncache(self, blocks: list[int]) -> None:
        """The content of these (distinct) blocks can no longer be found: those nobody holds become free."""
        idle = [block for block in blocks if self.refcounts[block] == 0]
        self._take_idle(idle)
        for block in blocks:
            self._pins.pop(block, None)
        self._push(np.array(idle, np.int32))

    def pin(self, blocks: list[int]) -> None:
        """Keep the content of (distinct, active or cached) blocks, given in logical order, from eviction, once more."""
        for block in reversed(blocks):  # ends are evicted before beginnings
            times = self._pins.get(block, 0)
            if not times and self.refcounts[block] == 0:
                del self._cached[block]
                self._idle_pinned[block] = None
            self._pins[block] = times + 1

    def unpin(self, blocks: list[int]) -> None:
        """Take one pin from each of the (distinct) blocks, given in logical order, that still has one."""
        for block in reversed(blocks):
            times = self._pins.get(block, 0)
            if times > 1:
                self._pins[block] = times - 1
            elif times:
                del self._pins[block]
                if self.refcounts[block] == 0:
                    del self._idle_pinned[block]
                    self._cached[block] = None

    def is_pinned(self, block: int) -> bool:
        return block in self._pins

    def lift_all_pins(self) -> None:
        self._pins.clear()
        self._cached.update(self._idle_pinned)
        self._idle_pinned.clear()

    def free_blocks(self) -> Blocks:
        """The blocks without content in the order in which they will be handed out (a copy)."""
        return self._free[: self._num_unused][::-1].copy()

    def cached_blocks(self) -> Blocks:
        """The cached blocks in the order in which they will be evicted, pinned ones last."""
        return np.array([*self._cached, *self._idle_pinned], np.int32)

    def _take_idle(self, blocks: list[int]) -> None:
        """They are no longer among those that nobody holds."""
        cached = self._cached
        if not self._pins:
            deque(map(cached.__delitem__, blocks), maxlen=0)
            return
        for block in blocks:
            del (self._idle_pinned if block in self._pins else cached)[block]

    def _push(self, blocks: Blocks) -> None:
        self._free[self._num_unused : self._num_unused + len(blocks)] = blocks
        self._num_unused += len(blocks)

    def _evict(self, count: int) -> list[int]:
        ordinary = min(count, len(self._cached))
        blocks = [self._cached.popitem(last=False)[0] for _ in range(ordinary)]
        # Pins keep content, they never keep a request from running: with all else gone, the oldest give way.
        for _ in range(count - ordinary):
            block = self._idle_pinned.popitem(last=False)[0]
            del self._pins[block]
            blocks.append(block)
        self.num_evictions += count
        self._on_evict(blocks)
        return blocks

    def audit(self, holders: NDArray[np.int64]) -> list[str]:
        """Differences between the books and `holders` (`[num_blocks]`: sequences whose table names each block)."""
        findings = [
            f"block {block} has reference count {self.refcounts[block]} but {holders[block]} holders"
            for block in np.flatnonzero(self.refcounts != holders)
        ]
        if self.num_references != holders.sum():
            findings.append(f"{self.num_references} references are said to exist but {holders.sum()} do")
        if not 0 <= self._num_unused <= self.num_blocks:
            return [*findings, f"{self._num_unused} blocks of {self.num_blocks} are said to be unused"]
        stack = self._free[: self._num_unused]
        outside = (stack < 0) | (stack >= self.num_blocks)
        findings += [f"free entry {block} is no block of the pool" for block in stack[outside]]
        entries = np.bincount(stack[~outside], minlength=self.num_blocks)
        cached = np.bincount(self.cached_blocks(), minlength=self.num_blocks)
        findings += [
            f"block {block} is on the free stack {entries[block]} times" for block in np.flatnonzero(entries > 1)
        ]
        findings += [f"block {block} is free and held" for block in np.flatnonzero((entries > 0) & (holders > 0))]
        findings += [f"block {block} is cached and held" for block in np.flatnonzero((cached > 0) & (holders > 0))]
        findings += [f"block {block} is cached and free" for block in np.flatnonzero((cached > 0) & (entries > 0))]
        findings += [
            f"block {block} is leaked" for block in np.flatnonzero((entries == 0) & (holders == 0) & (cached == 0))
        ]
        findings += [
            f"block {block} is cached but its content cannot be found"
            for block in np.flatnonzero((cached > 0) & (self._findable == 0))
        ]
        findings += [
            f"block {block} is free but its content can be found"
            for block in np.flatnonzero((entries > 0) & (self._findable != 0))
        ]
        findings += [
            f"block {block} is among the evictable but pinned" for block in self._cached if block in self._pins
        ]
        findings += [
            f"block {block} is among the pinned but has no pin"
            for block in self._idle_pinned
            if block not in self._pins
        ]
        return findings
