"""A server from its start to its end: engine, front, signals.

The first SIGTERM or SIGINT stops it: no more requests are taken, those in progress end or are ended. The second
stops it at once. SIGHUP reads the API keys again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import uvicorn
import uvloop

from looseleaf.models.model_files import find_model
from looseleaf.models.store import resolve_model
from looseleaf.models.tokenizer import Tokenizer
from looseleaf.server.admission import Admission, AdmissionSettings, identify
from looseleaf.server.admitted_engine import AdmittedEngine
from looseleaf.server.app import create_app
from looseleaf.server.bind_address import bind, check_exposure, url_of
from looseleaf.server.client import RemoteEngine
from looseleaf.server.connection import ConnectionLimits, limited_connection
from looseleaf.server.engine_settings import EngineSettings
from looseleaf.server.identity import KeyRing
from looseleaf.server.interface import EngineStopped
from looseleaf.server.metrics import Prefix, ServerMetrics
from looseleaf.server.observed import ObservedEngine, observe_http
from looseleaf.server.open_files import allow_connections
from looseleaf.server.quotas import Quotas
from looseleaf.server.settings import FrontSettings

logger = logging.getLogger("looseleaf.server")

_CLOSE_SECONDS = 3
"""For connections to end when nothing is in progress any more."""
_WATCH_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class ServerSettings:
    engine: EngineSettings
    served_model_names: tuple[str, ...] = ()
    """Empty: the model's name as it was given."""
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    api_key_file: Path | None = None
    allow_unauthenticated: bool = False
    max_queue: int = 2048
    max_crashes: int = 3
    drain_timeout: float = 30.0
    """Seconds that requests in progress have to end when the server is told to stop."""
    metrics_prefix: Prefix = "vllm"
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)


def serve(settings: ServerSettings, on_ready: Callable[[str], None]) -> None:
    """Returns when the server was told to stop. `on_ready` is called with its address.

    Raises a `LooseleafError` for what keeps it from starting, and `EngineStopped` if the engine is lost for good.
    """
    ring = KeyRing(settings.api_keys, settings.api_key_file)
    check_exposure(settings.host, has_keys=ring.required, allow_unauthenticated=settings.allow_unauthenticated)
    with bind(settings.host, settings.port) as bound, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Serving(settings, ring, bound).run(on_ready))


class _Serving:
    def __init__(self, settings: ServerSettings, ring: KeyRing, bound: socket.socket) -> None:
        self._settings = settings
        self._ring = ring
        self._bound = bound
        self._stop = asyncio.Event()
        self._engine: RemoteEngine | None = None

    async def run(self, on_ready: Callable[[str], None]) -> None:
        settings = self._settings
        with self._signals():
            path = await asyncio.to_thread(lambda: resolve_model(settings.engine.model).path)
            engine = self._engine = RemoteEngine(
                msgspec.structs.replace(settings.engine, model=str(path)),
                max_crashes=settings.max_crashes,
            )
            starting = asyncio.create_task(engine.start())
            stopped = asyncio.create_task(self._stop.wait())
            try:
                tokenizer = await asyncio.to_thread(_load_tokenizer, path)  # while the engine starts
                await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
                if starting.done():
                    starting.result()
                    await self._serve(engine, tokenizer, on_ready)
            finally:
                stopped.cancel()
                await engine.stop()
                with suppress(Exception):
                    await starting  # what it raised was raised above, or is due to the stop

    async def _serve(self, engine: RemoteEngine, tokenizer: Tokenizer, on_ready: Callable[[str], None]) -> None:
        settings, quotas = self._settings, Quotas()
        limits = settings.connections
        limits = replace(limits, max_connections=allow_connections(limits.max_connections))
        admitted = AdmittedEngine(
            engine, max_queue=settings.max_queue, quotas=quotas, tenant_named=self._ring.tenant_named
        )
        names = settings.served_model_names or (settings.engine.model,)
        metrics = ServerMetrics(engine, names[0], prefix=settings.metrics_prefix)
        app = create_app(ObservedEngine(admitted, metrics), tokenizer, FrontSettings(names), identify=identify)
        observe_http(app, metrics)
        admission = Admission(app, settings.admission, self._ring, quotas)
        server = _Uvicorn(
            uvicorn.Config(
                admission,
                http=limited_connection(limits),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_CLOSE_SECONDS,
            )
        )
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # clients' faults are theirs to know
        serving = asyncio.create_task(server.serve([self._bound]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.001)
        on_ready(url_of(self._bound))
        while not self._stop.is_set() and engine.state != "stopped" and not serving.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_SECONDS):
                    await self._stop.wait()
        lost = engine.state == "stopped"
        admitted.closing = True
        admission.close()
        if not lost:
            await self._drain(admission)
        server.should_exit = True
        await serving
        if lost:
            raise EngineStopped("The engine is lost: its process ended again and again.", hint="The log says how.")

    async def _drain(self, admission: Admission) -> None:
        if admission.num_inside:
            logger.info("Stopping: %d requests are in progress.", admission.num_inside)
        try:
            async with asyncio.timeout(self._settings.drain_timeout):
                await admission.wait_until_empty()
        except TimeoutError:
            logger.warning(
                "Ended %d requests that were in progress after %g s.",
                admission.num_inside,
                self._settings.drain_timeout,
            )
            admission.end_all()

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


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # they are handled above


def _load_tokenizer(path: Path) -> Tokenizer:
    found = find_model(path)
    return Tokenizer.from_folder(found) if found.is_dir() else Tokenizer.from_gguf(found)
