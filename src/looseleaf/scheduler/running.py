"""The decoding sequences as parallel arrays, so that a step over N of them is a few NumPy calls."""

from __future__ import annotations

from bisect import bisect_left
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from looseleaf.scheduler.interface import Sequence, by_precedence

Index: TypeAlias = slice | NDArray[np.intp]


class DecodeSet:
    """Sequences whose known tokens are all computed but the last, in order of precedence.

    Each is one column of an int64 table, whose rows are the arrays below. Joining and leaving shift
    the columns behind it: O(capacity) moves, a few times in a sequence's life.
    """

    def __init__(self, capacity: int) -> None:
        self.sequences: list[Sequence] = []
        self._table = np.zeros((4, capacity), np.int64)
        self._seq_ids, self._num_tokens, self._final_lens, self._turns = self._table

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, sequence: Sequence, step: int) -> None:
        """`step` is the one in which it sampled its newest token."""
        column, count = self._column(sequence), len(self)
        self._table[:, column + 1 : count + 1] = self._table[:, column:count]
        turn = self._first_turn(step + 1) - 1
        self._table[:, column] = (sequence.seq_id, sequence.num_tokens, sequence.request.final_len, turn)
        self.sequences.insert(column, sequence)

    def remove(self, sequence: Sequence) -> None:
        column, count = self._column(sequence), len(self)
        self._table[:, column : count - 1] = self._table[:, column + 1 : count]
        del self.sequences[column]

    def rebind(self, sequence: Sequence) -> None:
        """It has another memory id now."""
        self._seq_ids[self._column(sequence)] = sequence.seq_id

    def pick(self, budget: int) -> Index:
        """Columns of those that decode next. If they are more than `budget`, they take turns: each of N
        decodes within ceil(N / budget) steps. Beams of a request join together and so have their turns one after
        the other; as many decode as can without leaving one of them behind."""
        count = len(self)
        if count <= budget:
            return slice(0, count)
        order = np.argsort(self._turns[:count], kind="stable")
        first_left = self.sequences[order[budget]].request
        while budget and first_left.beams and self.sequences[order[budget - 1]].request is first_left:
            budget -= 1
        return order[:budget]

    def at(self, index: Index) -> tuple[list[Sequence], NDArray[np.int64], NDArray[np.int32]]:
        """Sequences, memory ids, and tokens known, as copies."""
        if isinstance(index, slice):
            sequences = self.sequences[index]
        else:
            sequences = [self.sequences[column] for column in index.tolist()]
        return sequences, self._seq_ids[index].copy(), self._num_tokens[index].astype(np.int32)

    def mark(self, index: Index, step: int) -> None:
        """Record that these decode in `step`."""
        turns = self._first_turn(step)
        self._turns[index] = turns if isinstance(index, slice) else turns + np.arange(len(index))

    def at_last_token(self, step: int, num_tokens: int = 1) -> list[Sequence]:
        """Those for which the token sampled in `step`, the last of `num_tokens` in a row, is the last allowed."""
        count = len(self)
        last = self._num_tokens[:count] + num_tokens >= self._final_lens[:count]
        last &= self._turns[:count] >= self._first_turn(step)
        return [self.sequences[column] for column in np.flatnonzero(last).tolist()]

    def steps_to_next_end(self) -> int:
        """Steps until the first of them, if all decode in each, has the last token allowed."""
        count = len(self)
        return int((self._final_lens[:count] - self._num_tokens[:count]).min())

    def advance(self, step: int, num_tokens: int = 1) -> None:
        """So many more tokens for each that decoded in `step` and has not left since."""
        count = len(self)
        self._num_tokens[:count] += num_tokens * (self._turns[:count] >= self._first_turn(step))

    def _first_turn(self, step: int) -> int:
        """Turns are numbered through all steps, at most one per column and step."""
        return step * self._table.shape[1]

    def _column(self, sequence: Sequence) -> int:
        return bisect_left(self.sequences, sequence.precedence, key=by_precedence)
