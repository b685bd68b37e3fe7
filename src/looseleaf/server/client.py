"""The engine for the front's handlers: requests out, events in, whatever happens to the engine's process."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType

import msgspec

from looseleaf.errors import InvalidRequest
from looseleaf.server.engine_settings import EngineSettings
from looseleaf.server.engine_totals import EngineTotals
from looseleaf.server.in_flight import InFlight
from looseleaf.server.interface import (
    AbortRequest,
    ClientState,
    EndSample,
    EngineMessage,
    EngineStartFailed,
    EngineStats,
    EngineStopped,
    Event,
    GenerateRequest,
    Listener,
    ModelInfo,
    Ready,
    RequestRefused,
    RequestRefusedError,
    Updates,
)
from looseleaf.server.supervisor import Supervisor, Suspects


class RemoteEngine:
    """An `EngineClient` whose engine is a supervised process. For one event loop.

    >>> async with RemoteEngine(EngineSettings(model="smollm2-135m")) as engine:
    ...     async for event in engine.generate(GenerateRequest(request_id="1", prompt_token_ids=[1, 2])):
    """

    def __init__(self, settings: EngineSettings, *, max_crashes: int = 3) -> None:
        """`max_crashes`: times that a request may end the engine's process before it is given up."""
        self._flights: dict[str, InFlight] = {}
        """By the id that the engine knows: what a request leaves behind must not reach one that has its name later."""
        self._names: dict[str, InFlight] = {}
        self._num_sent = 0
        self._suspects = Suspects(max_crashes)
        self._supervisor = Supervisor(
            settings, on_message=self._receive, on_end=self._note_end, on_stop=self._note_stop
        )
        self._info: ModelInfo | None = None
        self._totals = EngineTotals()
        self._stopped: EngineStopped | None = None

    async def start(self) -> None:
        """Returns when the engine is ready. Raises `EngineStartFailed`."""
        await self._supervisor.start()

    async def stop(self, timeout: float = 5.0) -> None:
        """End the engine's process; what is in flight fails with `EngineStopped`."""
        await self._supervisor.stop(timeout)

    async def __aenter__(self) -> RemoteEngine:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def state(self) -> ClientState:
        return self._supervisor.state

    @property
    def info(self) -> ModelInfo:
        if self._info is None:
            raise EngineStopped("The engine has not been ready yet.")
        return self._info

    @property
    def num_restarts(self) -> int:
        return self._supervisor.num_restarts

    @property
    def num_in_flight(self) -> int:
        return len(self._flights)

    @property
    def pid(self) -> int | None:
        """Of the engine's process, while there is one."""
        return self._supervisor.pid

    def stats(self) -> EngineStats:
        return self._totals.stats()

    async def generate(self, request: GenerateRequest, listener: Listener | None = None) -> AsyncGenerator[Event, None]:
        if self._stopped is not None:
            raise _again(self._stopped)
        name = request.request_id
        if name in self._names:
            raise InvalidRequest(f"Request id {name!r} is already in use.")
        self._num_sent += 1
        wire_id = f"{name}#{self._num_sent}"
        flight = InFlight(msgspec.structs.replace(request, request_id=wire_id), name, listener)
        self._flights[wire_id] = self._names[name] = flight
        try:
            if self._suspects.admit(flight):
                self._supervisor.send(flight.command())
            while True:
                for event in flight.take():
                    yield event
                if flight.over:
                    return
                await flight.wait()
        finally:
            del self._flights[wire_id], self._names[name]
            if not flight.over:
                flight.over = True
                self._supervisor.send(AbortRequest(wire_id))
            self._try_next()

    def end_sample(self, request_id: str, index: int) -> None:
        flight = self._names.get(request_id)
        if flight is None or not flight.end_sample(index):
            return
        if flight.exhausted:
            flight.finish()
            self._supervisor.send(AbortRequest(flight.wire_id))
        else:
            self._supervisor.send(EndSample(flight.wire_id, index))

    def _receive(self, message: EngineMessage) -> None:
        if isinstance(message, Ready):
            self._info = message.info
            self._totals.begin(message.info)
            self._resume()
        elif isinstance(message, RequestRefused):
            if (flight := self._flights.get(message.request_id)) is not None:
                told = message.message.replace(flight.wire_id, flight.name)
                flight.fail(RequestRefusedError(message.error, told, hint=message.hint, details=message.details))
        elif isinstance(message, Updates):
            if message.stats is not None:
                self._totals.take(message.stats)
            for event in message.events:
                if (flight := self._flights.get(event.request_id)) is not None:
                    flight.tell(event)
            self._try_next()

    def _note_end(self, places: dict[str, int], outside: bool) -> None:
        known = ((self._flights.get(request_id), place) for request_id, place in places.items())
        self._suspects.blame(
            {flight: place for flight, place in known if flight is not None and not flight.over}, outside=outside
        )

    def _note_stop(self, error: EngineStopped | EngineStartFailed) -> None:
        self._stopped = error if isinstance(error, EngineStopped) else EngineStopped(error.message, hint=error.hint)
        for flight in self._flights.values():
            flight.fail(_again(self._stopped))

    def _resume(self) -> None:
        """Give a new process everything that is in flight."""
        for flight in self._flights.values():
            flight.progressed = False
            if flight.exhausted:
                flight.finish()
        for flight in self._suspects.split(each for each in self._flights.values() if not each.over):
            self._supervisor.send(flight.command())

    def _try_next(self) -> None:
        for flight in self._suspects.next():
            self._supervisor.send(flight.command())


def _again(error: EngineStopped) -> EngineStopped:
    """For each who is told: an error that was raised keeps where."""
    return EngineStopped(error.message, hint=error.hint)
