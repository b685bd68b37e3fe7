"""Keeps an engine process there: starts it, notices its end, starts another one, and finds out whose fault it was."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from looseleaf.server.engine_life import EngineLife
from looseleaf.server.engine_settings import EngineSettings
from looseleaf.server.in_flight import InFlight
from looseleaf.server.interface import (
    ClientState,
    Command,
    EngineCrashed,
    EngineMessage,
    EngineStartFailed,
    EngineStopped,
    Ready,
    StartFailed,
    Stop,
)
from looseleaf.server.oom_kills import count_oom_kills

logger = logging.getLogger(__name__)

MAX_START_FAILURES = 3
_SHORT_LIFE = 1.0
_LONGEST_PAUSE = 5.0
_OUTSIDE = 4
"""Times as many ends by the hand of another that make a request culpable: what watches over memory kills too, and the
same request could call for it each time."""


class Suspects:
    """Which requests are to blame for the ends of the engine's process.

    Results are exact, so a request that ends the process does so again when it comes to the same place. Who was worked
    on at two ends in a row, and had come no further, is suspect. Suspects go to the next process one at a time and
    alone: each is cleared when it gets something done, and goes on beside the next. Then all the others go on.
    """

    def __init__(self, max_crashes: int) -> None:
        self._max_crashes = max_crashes
        self._waiting: list[InFlight] = []
        self._tried: InFlight | None = None
        self._held: list[InFlight] = []
        """Not suspect; they wait until no one is tried any more."""

    def blame(self, places: dict[InFlight, int], *, outside: bool = False) -> None:
        """After the end of a process: what it worked on, and how far each had come. Who was too often there, the last
        time alone, fails. `outside`: by all appearances somebody killed it, which takes much more to be anyone's fault.
        """
        limit = self._max_crashes * (_OUTSIDE if outside else 1)
        for flight, place in places.items():
            flight.crashes = flight.crashes + 1 if place == flight.crash_place else 1
            flight.crash_place = place
            if flight.crashes >= limit and len(places) == 1:
                flight.fail(
                    EngineCrashed(
                        f"The engine ended {flight.crashes} times while it worked on request {flight.name!r}.",
                        crashes=flight.crashes,
                        hint="The request is given up; the log of the engine says more.",
                    )
                )
                logger.error("Request %s is given up: the engine ended on it %d times", flight.name, flight.crashes)

    def split(self, flights: Iterable[InFlight]) -> list[InFlight]:
        """For a new process: which requests can go to it at once."""
        self._waiting, self._held = [], []
        for flight in flights:
            (self._waiting if flight.crashes >= min(2, self._max_crashes) else self._held).append(flight)
        self._waiting.sort(key=lambda flight: flight.crashes)  # the most suspect is tried first
        self._tried = None
        return self.next()

    def admit(self, flight: InFlight) -> bool:
        """Whether a new request can go to the process now; else it is among the `next`."""
        if self._tried is not None:
            self._held.append(flight)
        return self._tried is None

    def next(self) -> list[InFlight]:
        """Who goes to the process now: the next suspect if the one before is cleared, or over; after the last, all."""
        if self._tried is not None and not (self._tried.progressed or self._tried.over):
            return []
        self._tried = None
        while self._waiting:
            flight = self._waiting.pop()
            if not flight.over:
                self._tried = flight
                return [flight]
        held, self._held = self._held, []
        return [flight for flight in held if not flight.over]


class Supervisor:
    """Runs one engine process after another."""

    def __init__(
        self,
        settings: EngineSettings,
        *,
        on_message: Callable[[EngineMessage], None],
        on_end: Callable[[dict[str, int], bool], None],
        on_stop: Callable[[EngineStopped | EngineStartFailed], None],
    ) -> None:
        """`on_message`: what a process says. `on_end`: what it worked on when it ended, how far each had come, and
        whether it seems to have been killed from outside.
        `on_stop`: there will be no other one."""
        self._settings = settings
        self._on_message = on_message
        self._on_end = on_end
        self._on_stop = on_stop
        self._life: EngineLife | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None] | None = None
        self._failure: StartFailed | None = None
        self._stopping = asyncio.Event()
        self.state: ClientState = "starting"
        self.num_restarts = 0

    @property
    def pid(self) -> int | None:
        return None if self._life is None else self._life.pid

    async def start(self) -> None:
        """Returns when the engine is ready. Raises `EngineStartFailed`, or `EngineStopped` by `stop`."""
        self._ready = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())
        try:
            await asyncio.shield(self._ready)
        except (EngineStartFailed, EngineStopped):
            await self._task
            raise

    def send(self, command: Command) -> None:
        if self._life is not None and self.state == "ready":
            self._life.send(command)

    async def stop(self, timeout: float = 5.0) -> None:
        """End the process: it is asked first, and killed after `timeout` seconds."""
        self._stopping.set()
        if self._task is None:
            return
        if self._life is not None:
            self._life.send(Stop())
            if self.state != "ready":
                self._life.kill()
        done, _ = await asyncio.wait([self._task], timeout=timeout)
        if not done and self._life is not None:
            self._life.kill()
        await self._task

    async def _run(self) -> None:
        try:
            await self._run_lives()
        except Exception as error:  # no process can be started: no room for its folder, too many processes, …
            self._end(EngineStartFailed(type(error).__name__, f"The engine's process cannot be started: {error}"))
            logger.exception("The engine's process cannot be started")

    async def _run_lives(self) -> None:
        start_failures = 0
        pause = 0.1
        while not self._stopping.is_set():
            began, self._failure = time.monotonic(), None
            oom_kills = count_oom_kills()
            self._life = EngineLife(self._settings, self._receive)
            try:
                status = await self._life.ended()
                was_ready = self.state == "ready"
                if self._stopping.is_set():
                    break
                logger.error("The engine's process %d has ended: %s", self._life.pid, _describe(status))
                if self.state == "starting":
                    self._give_up(status)
                    return
                self.state = "restarting"
                places = self._life.working_on()
                self._on_end(places, status == -signal.SIGKILL and count_oom_kills() == oom_kills)
            finally:
                self._life.kill()
                self._life.close()
                self._life = None
            start_failures = 0 if was_ready else start_failures + 1
            if start_failures >= MAX_START_FAILURES:
                self._give_up(status)
                return
            if time.monotonic() - began < _SHORT_LIFE and not places:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                pause = 0.1
            self.num_restarts += 1
        self._end(EngineStopped("The server stops."))

    def _receive(self, message: EngineMessage) -> None:
        if isinstance(message, StartFailed):
            self._failure = message
            return
        if isinstance(message, Ready):
            self.state = "ready"
        self._on_message(message)
        if isinstance(message, Ready) and self._ready is not None and not self._ready.done():
            self._ready.set_result(None)

    def _give_up(self, status: int) -> None:
        if self._failure is not None:
            error = EngineStartFailed(self._failure.error, self._failure.message, hint=self._failure.hint)
        else:
            error = EngineStartFailed("", f"The engine's process ended before it was ready: {_describe(status)}.")
        self._end(error)

    def _end(self, error: EngineStopped | EngineStartFailed) -> None:
        self.state = "stopped"
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # nobody may be waiting for it any more
        self._on_stop(error)


def _describe(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with suppress(ValueError):
        return f"signal {signal.Signals(-status).name}"
    return f"signal {-status}"
