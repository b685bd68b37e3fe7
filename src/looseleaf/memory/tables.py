"""Every live sequence's row: its block table, its length, and the id that names it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.errors import DuplicateSequence, InvalidSize, OutOfRows, UnknownSequence
from looseleaf.memory.interface import ROW_BITS, ROW_MASK, Blocks, SequenceId, SequenceIds

_NO_ID = -1

Rows = NDArray[np.int64]


class Entries(NamedTuple):
    """Every block that any sequence holds; three parallel arrays, shared blocks once per holder."""

    rows: Rows
    columns: Rows
    blocks: Blocks


class BlockTables:
    """Rows of one int32 matrix `[max_num_seqs, max_blocks_per_seq]`, and parallel arrays of counts per row.

    An id is `generation << ROW_BITS | row`; the generation grows each time that a row is reused, so an id
    outlives its sequence without ever naming another one.
    """

    def __init__(self, max_num_seqs: int, max_blocks_per_seq: int) -> None:
        self.matrix: NDArray[np.int32] = np.zeros((max_num_seqs, max_blocks_per_seq), np.int32)
        self.flat = self.matrix.reshape(-1)
        self.width = max_blocks_per_seq
        self.lengths: NDArray[np.int32] = np.zeros(max_num_seqs, np.int32)
        self.filled: NDArray[np.int32] = np.zeros(max_num_seqs, np.int32)
        self.num_blocks: NDArray[np.int32] = np.zeros(max_num_seqs, np.int32)
        self.request_ids = [""] * max_num_seqs
        self._generations: Rows = np.zeros(max_num_seqs, np.int64)
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        # One entry more than rows: whatever row an invalid id claims, clipping sends it to the last entry, whose
        # id 0 (a row 0) it cannot have. Free rows hold -1, which claims row ROW_MASK and so is never looked up there.
        self._ids: NDArray[np.int64] = np.full(max_num_seqs + 1, _NO_ID, np.int64)
        self._ids[-1] = 0
        self._order: Rows = np.arange(max_num_seqs)
        self._scratch: Rows = np.zeros(max_num_seqs, np.int64)
        self._version = 0
        """Counts what opens and closes."""
        self._checked: tuple[SequenceIds | None, int, Rows] = (None, 0, self._order[:0])
        """Ids that cannot change, and their rows in that version: the same batch comes again and again."""

    def __len__(self) -> int:
        """Live sequences."""
        return len(self.request_ids) - len(self._free_rows)

    @property
    def num_free_rows(self) -> int:
        return len(self._free_rows)

    def require_row(self) -> None:
        """Raise `OutOfRows` unless another sequence can be opened."""
        if not self._free_rows:
            raise OutOfRows(
                f"All {len(self.request_ids)} rows hold a live sequence.", hint="Release one, or raise max_num_seqs."
            )

    def open(self, blocks: Blocks, length: int, filled: int, request_id: str) -> SequenceId:
        """A new sequence with these blocks; needs a free row."""
        row = self._free_rows.pop()
        self._version += 1
        count = len(blocks)
        self.matrix[row, :count] = blocks
        self.num_blocks[row] = count
        self.lengths[row] = length
        self.filled[row] = filled
        self.request_ids[row] = request_id
        generation = int(self._generations[row]) + 1
        self._generations[row] = generation
        seq = generation << ROW_BITS | row
        self._ids[row] = seq
        return seq

    def close(self, row: int) -> None:
        """Forget the sequence; its id is stale from now on."""
        self._version += 1
        self.matrix[row, : self.num_blocks[row]] = 0
        self.num_blocks[row] = self.lengths[row] = self.filled[row] = 0
        self.request_ids[row] = ""
        self._ids[row] = _NO_ID
        self._free_rows.append(row)

    def row(self, seq: SequenceId) -> int:
        """The row of one live sequence, or `UnknownSequence`."""
        if isinstance(seq, int | np.integer):
            row = int(seq) & ROW_MASK
            if row < len(self.request_ids) and self._ids[row] == seq:
                return row
        raise self._unknown(seq)

    def rows(self, seqs: SequenceIds) -> Rows:
        """The rows of distinct live sequences, or `UnknownSequence`, or `DuplicateSequence`."""
        checked, version, rows = self._checked
        if seqs is checked and version == self._version:
            return rows
        ids = np.asarray(seqs)
        if ids.ndim != 1:
            raise InvalidSize(f"The sequence ids have {ids.ndim} dimensions.", hint="Pass a one-dimensional array.")
        if ids.size == 0:
            return self._order[:0]
        if ids.dtype != np.int64:
            if ids.dtype.kind not in "iu":
                raise self._unknown(ids[0])
            ids = ids.astype(np.int64)
        rows = ids & ROW_MASK
        known = self._ids.take(rows, mode="clip") == ids
        # count_nonzero of a boolean array costs a fraction of what all() and any() do.
        if np.count_nonzero(known) < len(rows):
            raise self._unknown(ids[~known][0])
        # Each row remembers who wrote to it last: all find their own mark unless two have the same row.
        order = self._order[: len(rows)]
        if len(order) == len(rows):
            self._scratch[rows] = order
            if np.count_nonzero(self._scratch.take(rows) == order) == len(rows):
                flags = ids.flags
                if not flags.writeable and flags.owndata:
                    self._checked = (ids, self._version, rows)
                return rows
        repeated = ids[np.flatnonzero(np.bincount(rows)[rows] > 1)[0]]
        raise DuplicateSequence(f"Sequence {repeated} is named more than once.", hint="Pass distinct ids.")

    def blocks(self, row: int) -> Blocks:
        """The row's blocks, in logical order (a view)."""
        return self.matrix[row, : self.num_blocks[row]]

    def ids(self, rows: Rows) -> SequenceIds:
        """The sequences that live in these rows."""
        return self._ids[rows]

    def live_rows(self) -> Rows:
        return np.flatnonzero(self._ids[:-1] != _NO_ID)

    def entries(self) -> Entries:
        """Every (row, column, block) of the live sequences, row by row; O(held blocks)."""
        live = self.live_rows()
        counts = np.minimum(np.maximum(self.num_blocks[live], 0), self.width)
        rows = np.repeat(live, counts)
        columns = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return Entries(rows, columns, self.flat[rows * self.width + columns])

    def audit(self, num_blocks: int, block_size: int) -> list[str]:
        """Differences within the tables themselves, for a pool of `num_blocks` blocks."""
        live = self._ids[:-1] != _NO_ID
        free_rows = np.asarray(self._free_rows, np.int64)
        foreign = (free_rows < 0) | (free_rows >= len(live))
        times_free = np.bincount(free_rows[~foreign], minlength=len(live))
        checks = {
            "is live and free, or neither, or free more than once": times_free != ~live,
            "has an id that is not of its generation": live
            & (self._ids[:-1] != self._generations << ROW_BITS | self._order),
            "has a table longer than its row": self.num_blocks > self.width,
            "is live but holds no token": live & (self.lengths < 1),
            "is dead but holds tokens or blocks": ~live & (self.lengths | self.filled | self.num_blocks).astype(bool),
            "is longer than its blocks": self.lengths > self.num_blocks.astype(np.int64) * block_size,
            "has more computed tokens than tokens": (self.filled > self.lengths) | (self.filled < 0),
        }
        descriptions = list(checks)
        findings = [f"row {row} {descriptions[check]}" for check, row in np.argwhere(np.stack(list(checks.values())))]
        findings += [f"free row {row} is no row of the tables" for row in free_rows[foreign]]
        findings += [
            f"row {row} names a block beyond its table"
            for row in np.flatnonzero(live).tolist()
            if self.matrix[row, max(0, int(self.num_blocks[row])) :].any()
        ]
        rows, _, blocks = self.entries()
        outside = (blocks < 0) | (blocks >= num_blocks)
        findings += [
            f"row {row} names block {block}, no block of the pool"
            for row, block in zip(rows[outside], blocks[outside], strict=True)
        ]
        keys = np.sort((rows * num_blocks + blocks)[~outside])
        findings += [
            f"row {key // num_blocks} names block {key % num_blocks} more than once"
            for key in keys[1:][keys[1:] == keys[:-1]]
        ]
        return findings

    @staticmethod
    def _unknown(seq: object) -> UnknownSequence:
        return UnknownSequence(f"No live sequence has id {seq}.", hint="It was never issued, or has been released.")
