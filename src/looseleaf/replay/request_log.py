"""What became of each request: kept one by one, or only as distributions."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from looseleaf.replay.histogram import LogHistogram

LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue")
"""Seconds from arrival to the first token; per output token after the first, by request; between two tokens of a
sequence, by token; from arrival to the last token; from arrival to the first admission."""


@dataclass(slots=True)
class FinishedRequest:
    """Times in seconds since the trace began."""

    arrival: float
    admitted: float
    first_token: float
    finished: float
    prompt_tokens: int
    output_tokens: int
    """Of each sample."""
    num_samples: int
    num_cached: int
    """Prompt tokens that came from the prefix cache when it was first admitted."""
    num_preemptions: int
    tenant: str


@dataclass(slots=True)
class TenantTotals:
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    ttft_seconds: float = 0.0
    """Sums over the requests; divide by their number."""
    e2e_seconds: float = 0.0


_FLOATS = ("arrival", "admitted", "first_token", "finished")
_COUNTS = ("prompt_tokens", "output_tokens", "num_samples", "num_cached", "num_preemptions")


class RequestLog:
    """Finished requests in the order in which they ended."""

    def __init__(self, *, keep: bool) -> None:
        self.keep = keep
        self.histograms = {name: LogHistogram() for name in LATENCIES}
        self.tenants: dict[str, TenantTotals] = {}
        self.num_finished = 0
        self._floats = {name: array("d") for name in _FLOATS}
        self._counts = {name: array("i") for name in _COUNTS}
        self._tenant_numbers: dict[str, int] = {}
        self._tenant_of = array("i")

    def add(self, request: FinishedRequest) -> None:
        self.num_finished += 1
        e2e = request.finished - request.arrival
        ttft = request.first_token - request.arrival
        self.histograms["ttft"].add(ttft)
        self.histograms["e2e"].add(e2e)
        self.histograms["queue"].add(request.admitted - request.arrival)
        if request.output_tokens > 1:
            self.histograms["tpot"].add((request.finished - request.first_token) / (request.output_tokens - 1))
        totals = self.tenants.get(request.tenant)
        if totals is None:
            totals = self.tenants[request.tenant] = TenantTotals()
        totals.requests += 1
        totals.prompt_tokens += request.prompt_tokens
        totals.output_tokens += request.output_tokens * request.num_samples
        totals.cached_tokens += request.num_cached
        totals.preemptions += request.num_preemptions
        totals.ttft_seconds += ttft
        totals.e2e_seconds += e2e
        if self.keep:
            for name, times in self._floats.items():
                times.append(getattr(request, name))
            for name, counts in self._counts.items():
                counts.append(getattr(request, name))
            number = self._tenant_numbers.setdefault(request.tenant, len(self._tenant_numbers))
            self._tenant_of.append(number)

    def columns(self) -> dict[str, NDArray[np.float64] | NDArray[np.int32] | list[str]]:
        """The fields of `FinishedRequest`, by name; empty unless they were kept."""
        names = list(self._tenant_numbers)
        return {
            **{name: np.array(times) for name, times in self._floats.items()},
            **{name: np.array(counts, np.int32) for name, counts in self._counts.items()},
            "tenant": [names[number] for number in self._tenant_of],
        }
