"""A request on its way, as the front keeps it: enough to go on with it in another engine process."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

import msgspec

from looseleaf.server.interface import Event, GenerateRequest, Listener, RequestEnd, RequestStarted, SampleUpdate


class InFlight:
    """Follows one request; its reader takes what has come since it looked last.

    What is not read is merged into one update per sample: a slow reader holds up nobody, and costs no more memory
    than the output has.
    """

    __slots__ = (
        "_end",
        "_ended",
        "_error",
        "_has_started",
        "_known",
        "_listener",
        "_num_samples",
        "_reader",
        "_start",
        "_updates",
        "crash_place",
        "crashes",
        "name",
        "over",
        "progressed",
        "request",
        "whole",
    )

    def __init__(self, request: GenerateRequest, name: str, listener: Listener | None = None) -> None:
        """`name`: what its reader calls it; `request.request_id` is what the engine does."""
        params = request.params
        if params.get("seed") is None:
            request = msgspec.structs.replace(request, params=params | {"seed": secrets.randbits(63)})
        self.request = request
        self.name = name
        self._listener = listener
        samples = params.get("best_of") or params.get("n") or 1
        self.whole = params.get("beam_width") is not None or samples != (params.get("n") or 1)
        """Nothing of it is shown before its end: after a restart it begins again."""
        self.crashes = 0
        """Times in a row that the engine's process ended while it worked on this, at the same place."""
        self.crash_place: int | None = None
        self.progressed = False
        """Whether it has got anything done since it was sent last."""
        self.over = False
        self._num_samples = samples if isinstance(samples, int) else 1
        self._known: dict[int, list[int]] = {}
        self._ended: set[int] = set()
        self._start: RequestStarted | None = None
        self._has_started = False
        self._updates: dict[int, SampleUpdate] = {}
        self._end: RequestEnd | None = None
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def wire_id(self) -> str:
        return self.request.request_id

    def command(self) -> GenerateRequest:
        """What is sent to a new engine process."""
        self.progressed = False
        if self.whole or not (self._known or self._ended):
            return self.request
        params = {name: value for name, value in self.request.params.items() if name != "prompt_logprobs"}
        known = [self._known.get(index, []) for index in range(self._num_samples)]
        return msgspec.structs.replace(self.request, params=params, known=known, ended=sorted(self._ended))

    @property
    def exhausted(self) -> bool:
        """All samples have ended, whether or not the engine has said that this is the end."""
        return len(self._ended) >= self._num_samples and not self.whole

    def tell(self, event: Event) -> None:
        """Take an event from the engine."""
        if self.over:
            return
        event.request_id = self.name
        self.progressed = True
        if not self.whole:  # what shows nothing before its end may come to the same place again
            self.crashes = 0
        if isinstance(event, SampleUpdate):
            if self._update(event):
                return
        elif isinstance(event, RequestStarted):
            if not self._has_started:
                self._has_started, self._start = True, event
        else:
            self._end, self.over = event, True
        self._wake()

    def end_sample(self, index: int) -> bool:
        """Its reader has seen enough of this sample. False if it had ended, or is one of several to choose from."""
        if self.whole or index in self._ended or not 0 <= index < self._num_samples:
            return False
        self._ended.add(index)
        self._known.setdefault(index, [])
        return True

    def finish(self) -> None:
        """It is over, though no engine is left to say so."""
        self.tell(RequestEnd(self.name))

    def fail(self, error: Exception) -> None:
        """End it; the reader gets what has come, then the error."""
        if not self.over:
            self._error, self.over = error, True
            self._wake()

    def take(self) -> Iterator[Event]:
        """What has come since the last call. Raises the error that ended it."""
        if self._start is not None:
            start, self._start = self._start, None
            yield start
        while self._updates:  # more may come while the reader is busy with these
            updates, self._updates = self._updates, {}
            yield from updates.values()
        if self._end is not None:
            yield self._end
        if self._error is not None:
            raise self._error

    async def wait(self) -> None:
        """Until there is something to take."""
        if self._start is None and not self._updates and not self.over and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader

    def _update(self, event: SampleUpdate) -> bool:
        """Whether nobody needs to be woken for it."""
        index = event.index
        if index in self._ended:
            return True  # of a sample that its reader has ended
        if not self.whole:
            known = self._known.get(index)
            if known is None:
                self._known[index] = event.token_ids.copy()
            else:
                known += event.token_ids
            if event.finish_reason is not None:
                self._ended.add(index)
        if self._listener is not None and self._reader is not None and self._listened(self._listener, event):
            return True
        waiting = self._updates.get(index)
        if waiting is None:
            self._updates[index] = event
            return False
        waiting.token_ids += event.token_ids
        if event.logprobs is not None:
            waiting.logprobs = (waiting.logprobs or []) + event.logprobs
        waiting.finish_reason, waiting.stop_reason = event.finish_reason, event.stop_reason
        return False

    def _listened(self, listener: Listener, event: SampleUpdate) -> bool:
        try:
            return listener(event)
        except Exception as error:
            # For the reader, who then gives the request up; what comes until then nobody gets.
            self._listener, self._error = None, error
            self._wake()
            return True

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)
