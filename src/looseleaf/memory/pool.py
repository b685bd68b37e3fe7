"""The state of every physical block: how many sequences hold it, and which blocks nobody holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.interface import Blocks


class BlockPool:
    """Reference counts and the free stack. A block is *active* (count ≥ 1) or *free* (count 0, on the stack).

    Every method costs O(blocks named), whatever the size of the pool. Callers check the arguments: the
    pool's methods are steps of a transaction that has already been found possible.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.num_references = 0
        """Sum of all reference counts."""
        self.refcounts: NDArray[np.int32] = np.zeros(num_blocks, np.int32)
        # The top of the stack is at num_free - 1: a fresh pool hands out block 0 first.
        self._free: NDArray[np.int32] = np.arange(num_blocks - 1, -1, -1, dtype=np.int32)

    @property
    def num_shared(self) -> int:
        """Blocks that would be needed on top if none were shared."""
        return self.num_references - (self.num_blocks - self.num_free)

    def allocate(self, count: int) -> Blocks:
        """Take `count <= num_free` blocks, each with reference count 1."""
        bottom = self.num_free - count
        blocks = self._free[bottom : self.num_free][::-1].copy()
        self.num_free = bottom
        self.num_references += count
        self.refcounts[blocks] = 1
        return blocks

    def share(self, blocks: Blocks) -> None:
        """One more holder for each of the (distinct, active) blocks."""
        self.refcounts[blocks] += 1
        self.num_references += len(blocks)

    def unshare(self, blocks: Blocks) -> None:
        """One holder less each time a block is named; at least one must remain."""
        np.subtract.at(self.refcounts, blocks, 1)
        self.num_references -= len(blocks)

    def drop(self, blocks: Blocks) -> NDArray[np.bool_]:
        """One holder less for each of the (distinct) blocks; says which of them are free now."""
        counts = self.refcounts.take(blocks) - np.int32(1)
        self.refcounts[blocks] = counts
        self.num_references -= len(blocks)
        freed: NDArray[np.bool_] = counts == 0
        returned = blocks[freed]
        # Pushed last block first, so that the next allocation gets them in their logical order.
        self._free[self.num_free : self.num_free + len(returned)] = returned[::-1]
        self.num_free += len(returned)
        return freed

    def free_blocks(self) -> Blocks:
        """The free blocks in the order in which they will be handed out (a copy)."""
        return self._free[: self.num_free][::-1].copy()

    def audit(self, holders: NDArray[np.int64]) -> list[str]:
        """Differences between the books and `holders` (`[num_blocks]`: sequences whose table names each block)."""
        findings = [
            f"block {block} has reference count {self.refcounts[block]} but {holders[block]} holders"
            for block in np.flatnonzero(self.refcounts != holders)
        ]
        if self.num_references != holders.sum():
            findings.append(f"{self.num_references} references are said to exist but {holders.sum()} do")
        if not 0 <= self.num_free <= self.num_blocks:
            return [*findings, f"{self.num_free} blocks of {self.num_blocks} are said to be free"]
        stack = self._free[: self.num_free]
        outside = (stack < 0) | (stack >= self.num_blocks)
        findings += [f"free entry {block} is no block of the pool" for block in stack[outside]]
        entries = np.bincount(stack[~outside], minlength=self.num_blocks)
        findings += [
            f"block {block} is on the free stack {entries[block]} times" for block in np.flatnonzero(entries > 1)
        ]
        findings += [f"block {block} is free and held" for block in np.flatnonzero((entries > 0) & (holders > 0))]
        findings += [f"block {block} is leaked" for block in np.flatnonzero((entries == 0) & (holders == 0))]
        return findings
