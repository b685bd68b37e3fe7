"""The waiting queues: in order of precedence, or by what tenants got; with bounded bypass of a blocked head."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import merge
from itertools import islice

from looseleaf.scheduler.interface import Sequence, by_precedence
from looseleaf.scheduler.policy import FairShares

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

    def refresh(self) -> None:
        """Candidates are about to be asked for."""

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


class FairQueue(WaitingQueue):
    """The tenant that has got least goes next, with its first sequence.

    Bypass is bounded as in `WaitingQueue`. A head for whom everyone waits stays the head, whatever its tenant gets
    meanwhile: a large request cannot be put off for ever by the small ones of its own tenant.
    """

    def __init__(self, max_bypass: int, shares: FairShares) -> None:
        super().__init__(max_bypass)
        self._shares = shares
        self._by_tenant: dict[str, list[Sequence]] = {}
        self._order: list[Sequence] = []
        self._awaited: Sequence | None = None

    def add(self, sequence: Sequence) -> None:
        super().add(sequence)
        insort(self._by_tenant.setdefault(sequence.request.tenant, []), sequence, key=by_precedence)

    def remove(self, sequence: Sequence) -> None:
        super().remove(sequence)
        tenant = sequence.request.tenant
        theirs = self._by_tenant[tenant]
        del theirs[bisect_left(theirs, sequence.precedence, key=by_precedence)]
        if not theirs:
            del self._by_tenant[tenant]
        if sequence in self._order:
            self._order.remove(sequence)
        if sequence is self._awaited:
            self._awaited = None

    def refresh(self) -> None:
        order = merge(*(self._priced(tenant) for tenant in self._by_tenant))
        first = [] if self._awaited is None else [self._awaited]
        others = (sequence for _, _, sequence in order if sequence is not self._awaited)
        self._order = first + list(islice(others, LOOKAHEAD + 1 - len(first)))

    def candidate(self, position: int) -> Sequence | None:
        if position >= len(self._order):
            return None
        if position and self._order[0].num_bypasses >= self._max_bypass:
            self._awaited = self._order[0]
            return None
        return self._order[position]

    def take(self, sequence: Sequence) -> None:
        head = self._order[0]
        if sequence is not head:
            head.num_bypasses += 1
        self.remove(sequence)

    def _priced(self, tenant: str) -> Iterator[tuple[float, tuple[float, ...], Sequence]]:
        """A tenant's sequences with the counter that it will have when those before have been admitted."""
        counter = self._shares.counter(tenant)
        for sequence in islice(self._by_tenant[tenant], LOOKAHEAD + 1):
            yield counter, sequence.precedence, sequence
            counter += self._shares.price(sequence)
