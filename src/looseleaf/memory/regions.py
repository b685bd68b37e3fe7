"""Where contiguous regions are placed in the pool: first fit, and binary buddies. Neither ever moves one."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import NamedTuple, Protocol

import numpy as np

from looseleaf.memory.interface import Blocks


class Region(NamedTuple):
    """`blocks` consecutive blocks from `start` on."""

    start: int
    blocks: int

    @property
    def end(self) -> int:
        return self.start + self.blocks

    def block_ids(self) -> Blocks:
        return np.arange(self.start, self.end, dtype=np.int32)


class Placement(Protocol):
    """Hands out regions of one pool. `allocate` returns None when no hole is large enough."""

    num_free: int
    largest_possible: int
    """Largest region that the empty pool could give, in blocks."""

    def rounded(self, blocks: int) -> int:
        """Size of the region that a request for `blocks` gets."""
        ...

    def allocate(self, blocks: int) -> Region | None: ...

    def free(self, region: Region) -> None: ...

    @property
    def largest_hole(self) -> int:
        """Largest region that could be had now, in blocks."""
        ...

    def holes(self) -> list[Region]:
        """The free regions by address."""
        ...

    def audit(self) -> list[str]: ...


class FirstFit:
    """The lowest hole that is large enough; neighbouring holes merge. O(holes), of which there is at most one more
    than there are regions."""

    def __init__(self, num_blocks: int) -> None:
        self.num_free = num_blocks
        self.largest_possible = num_blocks
        self._holes = [Region(0, num_blocks)]

    def rounded(self, blocks: int) -> int:
        return blocks

    def allocate(self, blocks: int) -> Region | None:
        for at, hole in enumerate(self._holes):
            if hole.blocks >= blocks:
                rest = Region(hole.start + blocks, hole.blocks - blocks)
                self._holes[at : at + 1] = [rest] if rest.blocks else []
                self.num_free -= blocks
                return Region(hole.start, blocks)
        return None

    def free(self, region: Region) -> None:
        self.num_free += region.blocks
        first = last = bisect_left(self._holes, region)
        if first > 0 and self._holes[first - 1].end == region.start:
            first -= 1
            region = Region(self._holes[first].start, self._holes[first].blocks + region.blocks)
        if last < len(self._holes) and region.end == self._holes[last].start:
            region = Region(region.start, region.blocks + self._holes[last].blocks)
            last += 1
        self._holes[first:last] = [region]

    @property
    def largest_hole(self) -> int:
        return max((hole.blocks for hole in self._holes), default=0)

    def holes(self) -> list[Region]:
        return list(self._holes)

    def audit(self) -> list[str]:
        return [
            f"holes {left} and {right} are neighbours but were not merged"
            for left, right in zip(self._holes, self._holes[1:], strict=False)
            if left.end == right.start
        ]


class BuddyRegions:
    """Binary buddies (Knowlton 1965): regions of 2^k blocks, aligned to their size, split and merged in halves.

    A pool that is no power of two is covered by one root for each bit of its size, the largest first, so
    every root is aligned to its own size and a region's buddy is `start ^ size` everywhere. A root's own
    buddy would reach beyond the pool or into a smaller root, is never free as a whole, and so ends the merging.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_free = num_blocks
        self.largest_possible = 1 << (num_blocks.bit_length() - 1)
        self._num_blocks = num_blocks
        self._starts: list[list[int]] = [[] for _ in range(num_blocks.bit_length())]
        start = 0
        for order in reversed(range(num_blocks.bit_length())):
            if num_blocks >> order & 1:
                self._starts[order].append(start)
                start += 1 << order

    def rounded(self, blocks: int) -> int:
        return 1 << (blocks - 1).bit_length()

    def allocate(self, blocks: int) -> Region | None:
        wanted = (blocks - 1).bit_length()
        for order in range(wanted, len(self._starts)):
            if self._starts[order]:
                start = self._starts[order].pop(0)
                for half in reversed(range(wanted, order)):
                    insort(self._starts[half], start + (1 << half))
                self.num_free -= 1 << wanted
                return Region(start, 1 << wanted)
        return None

    def free(self, region: Region) -> None:
        self.num_free += region.blocks
        start, order = region.start, region.blocks.bit_length() - 1
        while order + 1 < len(self._starts):
            buddy = start ^ (1 << order)
            at = bisect_left(self._starts[order], buddy)
            if at == len(self._starts[order]) or self._starts[order][at] != buddy:
                break
            del self._starts[order][at]
            start = min(start, buddy)
            order += 1
        insort(self._starts[order], start)

    @property
    def largest_hole(self) -> int:
        return next((1 << order for order in reversed(range(len(self._starts))) if self._starts[order]), 0)

    def holes(self) -> list[Region]:
        return sorted(Region(start, 1 << order) for order, starts in enumerate(self._starts) for start in starts)

    def audit(self) -> list[str]:
        findings = [f"hole {hole} is not aligned to its size" for hole in self.holes() if hole.start % hole.blocks]
        for order, starts in enumerate(self._starts):
            findings += [
                f"buddies {start} and {start + (1 << order)} of {1 << order} blocks were not merged"
                for start in starts
                if start ^ (1 << order) in starts and not start >> order & 1
            ]
        return findings
