"""All that lies between the socket and the engine's client: connections, admission, application, metrics."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import uvicorn
from starlette.types import ASGIApp

from looseleaf.models.tokenizer import Tokenizer
from looseleaf.server.admission import Admission, identify
from looseleaf.server.admitted_engine import AdmittedEngine
from looseleaf.server.allowed_hosts import ANY_HOST, AllowedHosts
from looseleaf.server.app import create_app
from looseleaf.server.bind_address import is_loopback
from looseleaf.server.connection import limited_connection
from looseleaf.server.identity import KeyRing
from looseleaf.server.interface import EngineClient
from looseleaf.server.logs import RequestLog
from looseleaf.server.metrics import ServerMetrics
from looseleaf.server.observed import ObservedEngine, Watcher, observe_http, trace_headers
from looseleaf.server.open_files import allow_connections
from looseleaf.server.quotas import Quotas
from looseleaf.server.settings import FrontSettings, Observation, ServerSettings
from looseleaf.server.tracing import RequestTracer, parent_context

logger = logging.getLogger("looseleaf.server")

_CLOSE_SECONDS = 3
"""For connections to end when nothing is in progress any more."""


class HttpServer:
    """Serves `engine` on a bound socket, on the running event loop."""

    def __init__(
        self,
        settings: ServerSettings,
        ring: KeyRing,
        engine: EngineClient,
        tokenizer: Tokenizer,
        observation: Observation | None = None,
    ) -> None:
        observation = observation or Observation()
        quotas, limits = Quotas(), settings.connections
        limits = replace(limits, max_connections=allow_connections(limits.max_connections))
        self._drain_timeout = settings.drain_timeout
        self._admitted = AdmittedEngine(
            engine, max_queue=settings.max_queue, quotas=quotas, tenant_named=ring.tenant_named
        )
        names = settings.served_model_names or (settings.engine.model,)
        metrics = ServerMetrics(engine, names[0], prefix=settings.metrics_prefix, lost_records=observation.lost_records)
        observed = ObservedEngine(self._admitted, metrics, _watchers(settings, observation, names[0]))
        app = create_app(observed, tokenizer, FrontSettings(names), identify=identify)
        observe_http(app, metrics)
        self._admission = Admission(app, settings.admission, ring, quotas)
        self._server = _Uvicorn(
            uvicorn.Config(
                own_machine_only(self._admission, settings, ring),
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


def _watchers(settings: ServerSettings, observation: Observation, model_name: str) -> list[Watcher]:
    watchers: list[Watcher] = []
    if settings.log_requests:
        watchers.append(
            RequestLog(
                observation.log or sys.stderr,
                format=settings.log_format,
                prompts=settings.log_prompts,
                on_loss=observation.lost_records.note,
            )
        )
    if observation.traces is not None:
        tracer = observation.traces.tracer()
        watchers.append(RequestTracer(tracer, model_name, lambda: parent_context(trace_headers.get())))
    return watchers


def own_machine_only(app: ASGIApp, settings: ServerSettings, ring: KeyRing) -> ASGIApp:
    """Where nothing else says who may ask."""
    open_to_all = settings.allow_unauthenticated or ANY_HOST in settings.allowed_hosts
    if ring.required or open_to_all or not is_loopback(settings.host):
        return app
    return AllowedHosts(app, (settings.host, *settings.allowed_hosts))


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # whoever runs the server handles them
