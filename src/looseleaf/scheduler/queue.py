"""The waiting queue: first come first served, with bounded bypass of a blocked head."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from looseleaf.scheduler.interface import Sequence

LOOKAHEAD = 64
"""How far behind a blocked head a smaller request is looked for; bounds the cost of a step with a long queue."""

_precedence = attrgetter("precedence")


class WaitingQueue:
    """Sequences in order of precedence; one that was preempted returns to where it came from.

    While the head is blocked, at most `max_bypass` others are taken past it in total; then everyone waits
    for it. So a sequence with k others before it is passed at most `(k + 1) * max_bypass` times by later ones.
    """

    def __init__(self, max_bypass: int) -> None:
        self._max_bypass = max_bypass
        self._sequences: list[Sequence] = []
        self._times_passed: dict[Sequence, int] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=_precedence)

    def remove(self, sequence: Sequence) -> None:
        """Take it out for good (abort, finish); nobody is passed by that."""
        del self._sequences[bisect_left(self._sequences, sequence.precedence, key=_precedence)]
        self._times_passed.pop(sequence, None)

    def candidate(self, position: int) -> Sequence | None:
        """Who may be admitted next, given that all before `position` are blocked; None: nobody."""
        if position >= len(self._sequences) or position > LOOKAHEAD:
            return None
        if position and self._times_passed.get(self._sequences[0], 0) >= self._max_bypass:
            return None
        return self._sequences[position]

    def take(self, sequence: Sequence) -> None:
        """Remove a candidate that is admitted; if it was not the head, the head has been passed once more."""
        head = self._sequences[0]
        if sequence is not head:
            self._times_passed[head] = self._times_passed.get(head, 0) + 1
        self.remove(sequence)
