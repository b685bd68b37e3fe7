"""A server from its start to its end: engine, front, signals.

The first SIGTERM or SIGINT stops it: no more requests are taken, those in progress end or are ended. The second
stops it at once. SIGHUP reads the API keys again.

The engine's process is started before anything else. What the front needs for HTTP, pydantic's models above all, takes
a second of its own to import, and that passes while the engine starts.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import uvloop

from looseleaf.models.store import resolve_model
from looseleaf.server.bind_address import bind, check_exposure, url_of
from looseleaf.server.client import RemoteEngine
from looseleaf.server.identity import KeyRing
from looseleaf.server.interface import EngineStopped
from looseleaf.server.log_format import logs_written
from looseleaf.server.log_stream import LostRecords
from looseleaf.server.settings import Observation, ServerSettings
from looseleaf.server.tracing import TraceExport

if TYPE_CHECKING:
    from looseleaf.server.http_server import HttpServer

AUTO_POLICY = "auto"
_WATCH_SECONDS = 0.2


def serve(settings: ServerSettings, on_ready: Callable[[str], None]) -> None:
    """Returns when the server was told to stop. `on_ready` is called with its address.

    Raises a `LooseleafError` for what keeps it from starting, and `EngineStopped` if the engine is lost for good.
    """
    gc.disable()  # until it serves
    lost = LostRecords()
    with (
        logs_written(
            sys.stderr, format=settings.log_format, source="front", level=settings.log_level, on_loss=lost.note
        ) as log,
        _traces(settings.otlp_traces_endpoint) as traces,
    ):
        _serve(settings, Observation(log, lost, traces), on_ready)


def _serve(settings: ServerSettings, observation: Observation, on_ready: Callable[[str], None]) -> None:
    ring = KeyRing(settings.api_keys, settings.api_key_file)
    check_exposure(settings.host, has_keys=ring.required, allow_unauthenticated=settings.allow_unauthenticated)
    with bind(settings.host, settings.port) as bound, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Serving(settings, ring, bound, observation).run(on_ready))


class _Serving:
    def __init__(self, settings: ServerSettings, ring: KeyRing, bound: socket.socket, observation: Observation) -> None:
        self._settings = settings
        self._ring = ring
        self._bound = bound
        self._observation = observation
        self._stop = asyncio.Event()
        self._engine: RemoteEngine | None = None

    async def run(self, on_ready: Callable[[str], None]) -> None:
        settings = self._settings
        with self._signals():
            path = await asyncio.to_thread(lambda: resolve_model(settings.engine.model).path)
            engine = self._engine = RemoteEngine(
                msgspec.structs.replace(
                    settings.engine,
                    model=str(path),
                    config=with_policy(settings.engine.config, self._ring),
                    log_level=settings.log_level,
                    log_format=settings.log_format,
                ),
                max_crashes=settings.max_crashes,
            )
            starting = asyncio.create_task(engine.start())
            stopped = asyncio.create_task(self._stop.wait())
            try:
                server = await asyncio.to_thread(self._prepare, engine, path)  # while the engine starts
                await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    starting.result()
                    await self._serve(engine, server, on_ready)
            finally:
                stopped.cancel()
                await engine.stop()
                with suppress(Exception):
                    await starting  # what it raised was raised above, or is due to the stop

    def _prepare(self, engine: RemoteEngine, path: Path) -> HttpServer:
        from looseleaf.models.tokenizer import Tokenizer
        from looseleaf.server.http_server import HttpServer

        tokenizer = Tokenizer.from_model(path)
        tokenizer.detokenizer()  # makes its tables
        return HttpServer(self._settings, self._ring, engine, tokenizer, self._observation)

    async def _serve(self, engine: RemoteEngine, server: HttpServer, on_ready: Callable[[str], None]) -> None:
        gc.freeze()  # what is here now stays: no collection needs to look at it again
        gc.enable()
        await server.start(self._bound)
        on_ready(url_of(self._bound))
        while not self._stop.is_set() and engine.state != "stopped" and not server.has_ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_SECONDS):
                    await self._stop.wait()
        lost = engine.state == "stopped"
        server.close()
        if not lost:
            await server.drain()
        await server.stop()
        if lost:
            raise EngineStopped("The engine is lost: its process ended again and again.", hint="The log says how.")

    @contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._note_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._ring.reload)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _note_stop(self, number: int) -> None:
        if not self._stop.is_set():
            self._stop.set()
            return
        if self._engine is not None and (pid := self._engine.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(128 + number)


def with_policy(config: dict[str, Any], ring: KeyRing) -> dict[str, Any]:
    """Where nobody has said who goes first: tenants get fair shares, if there are several."""
    if config.get("scheduling_policy") != AUTO_POLICY:
        return config
    return config | {"scheduling_policy": "fair" if ring.num_tenants > 1 else "fcfs"}


@contextmanager
def _traces(endpoint: str | None) -> Iterator[TraceExport | None]:
    """Raises `ConfigurationError`."""
    if endpoint is None:
        yield None
        return
    traces = TraceExport(endpoint)
    try:
        yield traces
    finally:
        traces.close()
