"""What the engine keeps for each running sequence, in arrays that a step gathers from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.interface import ROW_MASK, SequenceIds

Indices = NDArray[np.int64]


class Seats:
    """A seat per sequence that runs, or that will fork from one that does; known tokens by seat.

    A seat is taken before the sequence has blocks (a sample waiting to fork) and so cannot be its block-table row;
    `of` maps the rows of a step to seats.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int) -> None:
        self.tokens = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        """Prompt and output of each seat's sequence; what lies beyond is stale."""
        self._adapters = np.full(max_num_seqs, -1, np.int64)
        self._free = list(range(max_num_seqs - 1, -1, -1))
        self._seat_of_row = np.zeros(max_num_seqs, np.int64)

    def take(self, token_ids: Sequence[int], adapter: int) -> int:
        """`adapter`: the model's number of it, or -1."""
        seat = self._free.pop()
        self._adapters[seat] = adapter
        self.tokens[seat, : len(token_ids)] = token_ids
        return seat

    def give_back(self, seat: int) -> None:
        self._free.append(seat)

    def bind(self, seat: int, seq_id: int) -> None:
        """From now on the sequence with this memory id sits here."""
        self._seat_of_row[seq_id & ROW_MASK] = seat

    def adapters_of(self, seats: Indices) -> Indices | None:
        """The adapter of each seat, or None where nobody has one."""
        adapters: Indices = self._adapters[seats]
        return adapters if bool((adapters >= 0).any()) else None

    def of(self, seq_ids: SequenceIds) -> Indices:
        seats: Indices = self._seat_of_row[seq_ids & ROW_MASK]
        return seats
