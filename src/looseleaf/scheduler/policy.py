"""In which order requests are served: who is admitted first, and who gives way when blocks run out.

Pure decisions: no clock; `Request.arrival` is the only time that counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol, TypeAlias

import numpy as np

from looseleaf.scheduler.interface import Request, SchedulerConfig, Sequence, by_precedence

Place: TypeAlias = tuple[float, ...]


class Policy(Protocol):
    """What the scheduler asks. The order of two requests is fixed by `place`, unless the policy is `FairShares`."""

    def place(self, request: Request, number: int) -> Place:
        """Where a request stands: the smaller goes first. `number`: of its arrival; no two places are equal."""
        ...


class FirstComeFirstServed:
    def place(self, request: Request, number: int) -> Place:  # noqa: ARG002 (all are equal)
        return (number,)


class Priority:
    """The smaller `Request.priority` goes first, and who waits counts as one smaller for every `ageing_seconds`.

    Ageing at one rate for all leaves the order of two requests as it was when the second arrived, so a place is a
    number: one that is d levels less urgent goes before whatever arrives more than d * `ageing_seconds` later, and
    nobody starves.
    """

    def __init__(self, ageing_seconds: float) -> None:
        self._ageing_seconds = ageing_seconds

    def place(self, request: Request, number: int) -> Place:
        return (request.priority + request.arrival / self._ageing_seconds, number)


class FairShares:
    """Tenants get shares of the service in proportion to their weights; within a tenant, first come first served.

    The Virtual Token Counter of Sheng et al. ("Fairness in Serving Large Language Models", OSDI 2024): each tenant has
    a counter of the service that it got, divided by its weight, and the one with the smallest goes next. A prompt is
    paid at its first admission (what the prefix cache has of it is free, and so is what is computed again after a
    preemption), each output token when it is sampled. A tenant that comes back after a pause starts where the least
    served of the others stands: pauses are not saved up. As long as two tenants have requests waiting that fit, their
    counters differ by no more than what one prompt and the outputs of all running sequences cost.
    """

    PROMPT_COST = 1.0
    OUTPUT_COST = 2.0
    """Of a token; an output token takes a step of its own, prompt tokens come many to a step."""

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._num_requests: dict[str, int] = {}
        self._floor = 0.0

    def place(self, request: Request, number: int) -> Place:  # noqa: ARG002 (tenants have an order, not requests)
        return (number,)

    @property
    def num_known(self) -> int:
        """Tenants that are remembered."""
        return len(self._counters)

    def counter(self, tenant: str) -> float:
        """Service so far, in prompt tokens at weight 1."""
        return self._counters.get(tenant, self._floor)

    def enter(self, request: Request) -> None:
        """A request has arrived; its weight is that of its tenant from now on."""
        tenant = request.tenant
        self._weights[tenant] = request.weight
        if not self._num_requests.get(tenant):
            self._raise_floor()
            self._counters[tenant] = max(self.counter(tenant), self._floor)
        self._num_requests[tenant] = self._num_requests.get(tenant, 0) + 1

    def leave(self, request: Request) -> None:
        """A request has ended. Who is idle is forgotten once the others have got as much."""
        tenant = request.tenant
        self._num_requests[tenant] -= 1
        if self._num_requests[tenant]:
            return
        del self._num_requests[tenant]
        self._raise_floor()
        for idle in [each for each in self._counters if each not in self._num_requests]:
            if self._counters[idle] <= self._floor:
                del self._counters[idle], self._weights[idle]

    def charge_prompt(self, sequence: Sequence) -> None:
        """It has just been admitted."""
        if not sequence.num_preemptions:
            self._charge(sequence, self.PROMPT_COST * (sequence.prefill_len - sequence.num_computed))

    def charge_outputs(self, sequences: Iterable[Sequence], num_samples: Iterable[int]) -> None:
        """Each of these has sampled so many tokens."""
        for sequence, count in zip(sequences, num_samples, strict=True):
            if count:
                self._charge(sequence, self.OUTPUT_COST * count)

    def charge_run(self, sequences: Iterable[Sequence], num_steps: int) -> None:
        """Each of these has sampled a token in each of so many steps; to the bit what `charge_outputs` makes of it."""
        for tenant, count in Counter(sequence.request.tenant for sequence in sequences).items():
            if tenant in self._num_requests:
                cost = self.OUTPUT_COST / self._weights[tenant]
                costs = np.full(count * num_steps + 1, cost)
                costs[0] = self._counters[tenant]
                self._counters[tenant] = float(np.add.accumulate(costs)[-1])

    def price(self, sequence: Sequence) -> float:
        """By how much admitting it may raise its tenant's counter."""
        if sequence.num_preemptions:
            return 0.0
        return self.PROMPT_COST * sequence.prefill_len / self._weights[sequence.request.tenant]

    def victim(self, running: Iterable[Sequence]) -> Sequence:
        """The latest of the tenant that has got most."""
        return max(running, key=lambda sequence: (self.counter(sequence.request.tenant), sequence.precedence))

    def _charge(self, sequence: Sequence, cost: float) -> None:
        tenant = sequence.request.tenant
        if tenant in self._num_requests:
            self._counters[tenant] += cost / self._weights[tenant]

    def _raise_floor(self) -> None:
        """Where a tenant starts that arrives now: at the least counter of the active ones; if nobody is, everyone has
        had enough, and all begin anew."""
        active = [self._counters[tenant] for tenant in self._num_requests]
        self._floor = max(self._floor, min(active) if active else max(self._counters.values(), default=0.0))


def make_policy(config: SchedulerConfig) -> Policy:
    if config.policy == "priority":
        return Priority(config.priority_ageing_seconds)
    return FairShares() if config.policy == "fair" else FirstComeFirstServed()


def last_of(groups: Iterable[list[Sequence]]) -> Sequence:
    """The last in order of precedence; each group is sorted by it."""
    return max((group[-1] for group in groups if group), key=by_precedence)
