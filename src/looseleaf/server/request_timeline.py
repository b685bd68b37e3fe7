"""When what happened to one request, as the front sees it."""

from __future__ import annotations

import time
from typing import Literal

from looseleaf.server.histogram import Histogram
from looseleaf.server.interface import GenerateRequest, RequestEnd, RequestStarted, SampleUpdate

Outcome = Literal["stop", "length", "abort", "error"]
OUTCOMES: tuple[Outcome, ...] = ("stop", "length", "abort", "error")


class RequestTimeline:
    """Told of each event on its way to the handler. Times are `time.perf_counter` seconds."""

    __slots__ = (
        "_inter_token",
        "_last",
        "_open",
        "arrived",
        "cached_tokens",
        "ended",
        "failure",
        "finish_reasons",
        "first_token",
        "generated_tokens",
        "longest_output",
        "preemptions",
        "prefill_seconds",
        "queue_seconds",
        "request",
        "started",
    )

    def __init__(self, request: GenerateRequest, arrived: float, inter_token: Histogram) -> None:
        """`arrived`: when its HTTP request did. `inter_token` is told of the time between tokens of a sample."""
        self.request = request
        self.arrived = arrived
        self.started = False
        """Its prompt is computed."""
        self.first_token: float | None = None
        self.ended: float | None = None
        self.queue_seconds = self.prefill_seconds = 0.0
        self.cached_tokens = self.generated_tokens = self.longest_output = self.preemptions = 0
        self.finish_reasons: dict[int, str] = {}
        """By sample."""
        self.failure: BaseException | None = None
        self._inter_token = inter_token
        self._last: dict[int, tuple[float, int]] = {}
        """By sample: when its newest token came, and how many there are."""
        self._open = number_of(request.params.get("n"), 1)

    def start(self, event: RequestStarted) -> None:
        self.started = True
        self.cached_tokens = event.num_cached_tokens
        self.prefill_seconds = event.prefill_seconds
        # The engine counts from when it took the request, which may have waited for the end of a step before.
        waited = time.perf_counter() - self.arrived - event.prefill_seconds
        self.queue_seconds = max(waited, event.queue_seconds)

    def update(self, event: SampleUpdate) -> int:
        """The number of its tokens."""
        now = time.perf_counter()
        count = len(event.token_ids)
        last = self._last.get(event.index)
        if last is None:
            self._last[event.index] = (now, count)
            if self.first_token is None:
                self.first_token = now
        elif count:
            self._last[event.index] = (now, last[1] + count)
            self._inter_token.observe((now - last[0]) / count, count)
        self.generated_tokens += count
        if event.finish_reason is not None:
            self.finish_reasons.setdefault(event.index, event.finish_reason)
        return count

    def end_sample(self, index: int) -> None:
        """The front has found a stop string."""
        self.finish_reasons.setdefault(index, "stop")

    def end(self, event: RequestEnd) -> None:
        self.preemptions = event.num_preemptions

    def close(self, failure: BaseException | None) -> None:
        """`failure`: what was raised instead of an end; also `GeneratorExit`, if nobody wanted more."""
        self.ended = time.perf_counter()
        self.failure = failure
        self.longest_output = max((count for _, count in self._last.values()), default=0)

    @property
    def outcome(self) -> Outcome:
        """Of several samples: the first of error, abort, length, stop that one of them had."""
        reasons = set(self.finish_reasons.values())
        if isinstance(self.failure, Exception) or "error" in reasons:
            return "error"
        if "abort" in reasons or len(self.finish_reasons) < self._open:
            return "abort"
        return "length" if "length" in reasons else "stop"


def number_of(value: object, otherwise: int) -> int:
    """A parameter that may be absent or nonsense (which the engine then refuses)."""
    return value if isinstance(value, int) else otherwise
