"""The engine behind a queue of limited length; it counts what each tenant uses."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from looseleaf.server.forwarding_engine import ForwardingEngine
from looseleaf.server.identity import Tenant
from looseleaf.server.interface import (
    ClientState,
    EngineClient,
    Event,
    GenerateRequest,
    Listener,
    RequestStarted,
    SampleUpdate,
)
from looseleaf.server.protocol.errors import ApiError
from looseleaf.server.quotas import Quotas

_LONGEST_RETRY_SECONDS = 60
_SMOOTHING = 0.1
"""Weight of the newest of the times between two ends."""


class AdmittedEngine(ForwardingEngine):
    """An `EngineClient` in front of another. A request that finds the queue full fails at once, with 429."""

    def __init__(
        self,
        engine: EngineClient,
        *,
        max_queue: int,
        quotas: Quotas,
        tenant_named: Callable[[str], Tenant],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_queue`: most requests that wait beside those that there is a seat for."""
        super().__init__(engine)
        self._max_queue = max_queue
        self._quotas = quotas
        self._tenant_named = tenant_named
        self._clock = clock
        self._unstarted = 0
        """Requests whose prompt is not computed."""
        self._running = 0
        """Samples of the others."""
        self._last_end: float | None = None
        self._seconds_per_request = 1.0
        self.closing = False
        """Whether the server takes no more requests: shown as not ready."""

    @property
    def state(self) -> ClientState:
        return "stopped" if self.closing else super().state

    async def generate(self, request: GenerateRequest, listener: Listener | None = None) -> AsyncGenerator[Event, None]:
        self._check_priority(request)
        self._check_queue()
        tenant, charge = request.tenant, self._quotas.charge
        samples = _samples(request)
        started = False

        def listen(update: SampleUpdate) -> bool:
            if listener is None or not listener(update):
                return False
            charge(tenant, len(update.token_ids))
            return True

        self._unstarted += 1
        try:
            async with aclosing(self._engine.generate(request, listen if listener else None)) as events:
                async for event in events:
                    if isinstance(event, SampleUpdate):
                        charge(tenant, len(event.token_ids))
                    elif isinstance(event, RequestStarted) and not started:
                        started = True
                        self._unstarted -= 1
                        self._running += samples
                        charge(tenant, len(request.prompt_token_ids))
                    yield event
        finally:
            if started:
                self._running -= samples
                self._note_end()
            else:
                self._unstarted -= 1

    def queued(self) -> int:
        """Requests that would wait, were there one more."""
        unstarted = self._unstarted + 1
        free_seats = max(0, self.info.max_num_seqs - self._running)
        # What the engine says is up to a tenth of a second old, but knows when memory is what is missing.
        waiting = self.stats().num_waiting
        return max(unstarted - free_seats, min(unstarted, waiting + 1) if waiting else 0)

    def _check_queue(self) -> None:
        if (queued := self.queued()) > self._max_queue:
            retry = min(_LONGEST_RETRY_SECONDS, max(1, math.ceil(queued * self._seconds_per_request)))
            raise ApiError(
                429,
                f"The queue is full: {queued - 1} requests wait, {self._max_queue} may.",
                code="queue_full",
                hint=f"Try again in {retry} s.",
                headers={"Retry-After": str(retry)},
            )

    def _check_priority(self, request: GenerateRequest) -> None:
        lowest = self._tenant_named(request.tenant).lowest_priority_value
        if lowest is not None and request.priority < lowest:
            raise ApiError(
                400,
                f"priority is {request.priority} but this key may ask for {lowest} at the least.",
                param="priority",
                code="invalid_value",
            )

    def _note_end(self) -> None:
        now = self._clock()
        if self._last_end is not None:
            self._seconds_per_request += _SMOOTHING * (now - self._last_end - self._seconds_per_request)
        self._last_end = now


def _samples(request: GenerateRequest) -> int:
    params = request.params
    counts = [params.get(name) for name in ("beam_width", "best_of", "n")]
    return max((count for count in counts if isinstance(count, int)), default=1)
