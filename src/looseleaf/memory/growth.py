"""What it takes for sequences in paged memory to grow: decided first, carried out whole."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from looseleaf.memory.interface import NO_COPIES, Blocks
from looseleaf.memory.pool import BlockPool
from looseleaf.memory.tables import BlockTables, Rows

_NOWHERE: Rows = np.empty(0, np.int64)


class Growth(NamedTuple):
    """What one `append` does; the first four arrays are parallel to its sequences."""

    rows: Rows
    lengths: Rows
    """Afterwards; perhaps more than a row can address."""
    held: Blocks
    """Blocks, before."""
    missing: Rows
    needed: int
    """Blocks: those missing, and copies."""
    copy_at: Rows
    """Flat positions in the table matrix whose blocks, `copied`, are replaced by copies."""
    copied: Blocks
    block_size: int
    num_tokens: int
    """By which each sequence grows."""

    def entries(self) -> tuple[Rows, Rows]:
        """Row and column of each block that is appended to a table, row by row."""
        if self.num_tokens <= self.block_size:  # at most one each
            growing = self.missing.nonzero()[0]
            return self.rows[growing], self.held[growing].astype(np.int64)
        # A row's new blocks follow those it holds: its k-th one goes k columns further.
        ends = self.missing.cumsum()
        columns: Rows = np.repeat(self.held - (ends - self.missing), self.missing)
        columns += np.arange(len(columns))
        return np.repeat(self.rows, self.missing), columns


def plan_growth(tables: BlockTables, pool: BlockPool, block_size: int, rows: Rows, num_tokens: int) -> Growth:
    """Everything that appending `num_tokens` to each of the (distinct) rows would do, changing nothing."""
    before = tables.lengths.take(rows)
    lengths = before.astype(np.int64) + num_tokens
    held = tables.num_blocks.take(rows)
    missing = (lengths + (block_size - 1)) // block_size - held
    needed = int(np.add.reduce(missing))
    copy_at, copied = _NOWHERE, NO_COPIES.source
    if pool.num_shared:
        tails = rows * tables.width + (held - 1)
        blocks = tables.flat.take(tails)
        writers = np.flatnonzero((pool.refcounts.take(blocks) > 1) & (before < held * block_size))
        if len(writers):
            writers = _without_keepers(pool, writers, blocks)
        copy_at, copied = tails[writers], blocks[writers]
        needed += len(writers)
    return Growth(rows, lengths, held, missing, needed, copy_at, copied, block_size, num_tokens)


def possible_steps(growth: Growth, num_free: int, most: int) -> int:
    """How often in a row sequences can grow as in `growth`, by one token, before `num_free` blocks are used up."""
    free = num_free - len(growth.copied)
    room = growth.held.astype(np.int64) * growth.block_size - (growth.lengths - growth.num_tokens)

    def enough(steps: int) -> bool:
        return int(np.maximum(-((room - steps) // growth.block_size), 0).sum()) <= free

    if enough(most):
        return most
    possible, too_many = 0, most
    while possible + 1 < too_many:
        middle = (possible + too_many) // 2
        if enough(middle):
            possible = middle
        else:
            too_many = middle
    return possible


def _without_keepers(pool: BlockPool, at: Rows, tail_blocks: Blocks) -> Rows:
    """Of the writers into shared blocks, those that must copy: when all holders write, the last one need not."""
    blocks = tail_blocks[at]
    written, last_from_end, writers = np.unique(blocks[::-1], return_index=True, return_counts=True)
    all_write = writers == pool.refcounts[written]
    return np.delete(at, len(at) - 1 - last_from_end[all_write])
