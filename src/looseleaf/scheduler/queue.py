"""The waiting queue: first come first served, with bounded bypass of a blocked head."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from looseleaf.scheduler.interface import Sequence, by_precedence

LOOKAHEAD = 64
"""How far behind a blocked head a smaller request is looked for; bounds the cost of a step with a long queue."""


class WaitingQueue:
    """Sequences in order of precedence; one that was preempted returns to where it came from.

    At most `max_bypass` others are taken past a sequence while it is the blocked head, in its whole life: a
    preemption does not start the count anew. Then everyone waits for it. Whoever passes a sequence passes the head
    too, so one that arrives when k earlier ones have not ended is passed at most `(k + 1) * max_bypass` times.
    """

    def __init__(self, max_bypass: int) -> None:
        self._max_bypass = max_bypass
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=by_precedence)

    def remove(self, sequence: Sequence) -> None:
        """Take it out for good (abort); nobody is passed by that."""
        del self._sequences[bisect_left(self._sequences, sequence.precedence, key=by_precedence)]

    def candidate(self, position: int) -> Sequence | None:
        """Who may be admitted next, given that all before `position` are blocked; None: nobody."""
        if position >= len(self._sequences) or position > LOOKAHEAD:
            return None
        if position and self._sequences[0].num_bypasses >= self._max_bypass:
            return None
        return self._sequences[position]

    def take(self, sequence: Sequence) -> None:
        """Remove a candidate that is admitted; if it was not the head, the head has been passed once more."""
        head = self._sequences[0]
        if sequence is not head:
            head.num_bypasses += 1
        self.remove(sequence)
