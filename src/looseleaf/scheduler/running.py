"""The decoding sequences as parallel arrays, so that a step over N of them is a few NumPy calls."""

from __future__ import annotations

from bisect import bisect_left
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from looseleaf.scheduler.interface import Sequence, by_precedence

_NEVER = 2**31

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
        self._frozen_ids: NDArray[np.int64] | None = None
        """Of all, until somebody joins or leaves: the memory knows an array again that cannot have changed."""
        self._next_end: int | None = None
        """`steps_to_next_end`, while it is known."""

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, sequence: Sequence, step: int) -> None:
        """`step` is the one in which it sampled its newest token."""
        column, count = self._column(sequence), len(self)
        self._frozen_ids = self._next_end = None
        self._table[:, column + 1 : count + 1] = self._table[:, column:count]
        turn = self._first_turn(step + 1) - 1
        self._table[:, column] = (sequence.seq_id, sequence.num_tokens, sequence.request.final_len, turn)
        self.sequences.insert(column, sequence)

    def remove(self, sequence: Sequence) -> None:
        column, count = self._column(sequence), len(self)
        self._frozen_ids = self._next_end = None
        self._table[:, column : count - 1] = self._table[:, column + 1 : count]
        del self.sequences[column]

    def rebind(self, sequence: Sequence) -> None:
        """It has another memory id now."""
        self._frozen_ids = None
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
        """Sequences, memory ids (read-only), and tokens known, as copies; `index`: what `pick` returned."""
        num_tokens = self._num_tokens[index].astype(np.int32)
        if not isinstance(index, slice):
            return [self.sequences[column] for column in index.tolist()], self._seq_ids[index], num_tokens
        if self._frozen_ids is None:
            self._frozen_ids = self._seq_ids[: len(self)].copy()
            self._frozen_ids.flags.writeable = False
        return self.sequences[:], self._frozen_ids, num_tokens

    def mark(self, index: Index, step: int) -> None:
        """Record that these decode in `step`."""
        turns = self._first_turn(step)
        self._turns[index] = turns if isinstance(index, slice) else turns + np.arange(len(index))

    def at_last_token(self, step: int, num_tokens: int = 1) -> list[Sequence]:
        """Those for which the token sampled in `step`, the last of `num_tokens` in a row, is the last allowed."""
        if num_tokens < self.steps_to_next_end():
            return []
        count = len(self)
        last = self._num_tokens[:count] + num_tokens >= self._final_lens[:count]
        last &= self._turns[:count] >= self._first_turn(step)
        return [self.sequences[column] for column in np.flatnonzero(last).tolist()]

    def steps_to_next_end(self) -> int:
        """Steps until the first of them, if all decode in each, has the last token allowed."""
        count = len(self)
        if self._next_end is None:
            left = self._final_lens[:count] - self._num_tokens[:count]
            self._next_end = int(left.min()) if count else _NEVER
        return self._next_end

    def advance(self, step: int, num_tokens: int = 1) -> None:
        """So many more tokens for each that decoded in `step` and has not left since."""
        count = len(self)
        decoded = self._turns[:count] >= self._first_turn(step)
        if self._next_end is not None:
            self._next_end = self._next_end - num_tokens if np.count_nonzero(decoded) == count else None
        self._num_tokens[:count] += num_tokens * decoded

    def _first_turn(self, step: int) -> int:
        """Turns are numbered through all steps, at most one per column and step."""
        return step * self._table.shape[1]

    def _column(self, sequence: Sequence) -> int:
        return bisect_left(self.sequences, sequence.precedence, key=by_precedence)
