"""All that lies between the socket and the engine's client: connections, admission, application, metrics."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import uvicorn

from looseleaf.models.tokenizer import Tokenizer
from looseleaf.server.admission import Admission, identify
from looseleaf.server.admitted_engine import AdmittedEngine
from looseleaf.server.app import create_app
from looseleaf.server.connection import limited_connection
from looseleaf.server.identity import KeyRing
from looseleaf.server.interface import EngineClient
from looseleaf.server.metrics import ServerMetrics
from looseleaf.server.observed import ObservedEngine, observe_http
from looseleaf.server.open_files import allow_connections
from looseleaf.server.quotas import Quotas
from looseleaf.server.settings import FrontSettings, ServerSettings

logger = logging.getLogger("looseleaf.server")

_CLOSE_SECONDS = 3
"""For connections to end when nothing is in progress any more."""


class HttpServer:
    """Serves `engine` on a bound socket, on the running event loop."""

    def __init__(self, settings: ServerSettings, ring: KeyRing, engine: EngineClient, tokenizer: Tokenizer) -> None:
        quotas, limits = Quotas(), settings.connections
        limits = replace(limits, max_connections=allow_connections(limits.max_connections))
        self._drain_timeout = settings.drain_timeout
        self._admitted = AdmittedEngine(
            engine, max_queue=settings.max_queue, quotas=quotas, tenant_named=ring.tenant_named
        )
        names = settings.served_model_names or (settings.engine.model,)
        metrics = ServerMetrics(engine, names[0], prefix=settings.metrics_prefix)
        app = create_app(ObservedEngine(self._admitted, metrics), tokenizer, FrontSettings(names), identify=identify)
        observe_http(app, metrics)
        self._admission = Admission(app, settings.admission, ring, quotas)
        self._server = _Uvicorn(
            uvicorn.Config(
                self._admission,
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
        self._serving: asyncio.Task[None] | None = None

    async def start(self, bound: socket.socket) -> None:
        """Returns when it answers."""
        self._serving = asyncio.create_task(self._server.serve([bound]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0.001)

    @property
    def has_ended(self) -> bool:
        return self._serving is not None and self._serving.done()

    def close(self) -> None:
        """Take no more requests."""
        self._admitted.closing = True
        self._admission.close()

    async def drain(self) -> None:
        """Wait for what is in progress, as long as the settings say; then end it."""
        admission = self._admission
        if admission.num_inside:
            logger.info("Stopping: %d requests are in progress.", admission.num_inside)
        try:
            async with asyncio.timeout(self._drain_timeout):
                await admission.wait_until_empty()
        except TimeoutError:
            logger.warning(
                "Ended %d requests that were in progress after %g s.", admission.num_inside, self._drain_timeout
            )
            admission.end_all()

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # whoever runs the server handles them
