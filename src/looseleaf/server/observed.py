"""An engine client that is watched, and the HTTP side of the same: metrics, logs and traces see all from here."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import Protocol

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from looseleaf.server.forwarding_engine import ForwardingEngine
from looseleaf.server.interface import (
    EngineClient,
    Event,
    GenerateRequest,
    Listener,
    RequestStarted,
    SampleUpdate,
)
from looseleaf.server.metrics import ServerMetrics
from looseleaf.server.request_timeline import RequestTimeline

arrival: ContextVar[float | None] = ContextVar("arrival", default=None)
"""When the HTTP request arrived that is being handled (`time.perf_counter`)."""
trace_headers: ContextVar[dict[str, str] | None] = ContextVar("trace_headers", default=None)
"""Its traceparent and tracestate headers."""


class Watcher(Protocol):
    """Is told of each request when it is over: a log, a tracer."""

    def note_end(self, timeline: RequestTimeline) -> None: ...


class ObservedEngine(ForwardingEngine):
    """The `EngineClient` it is given, and tells what goes through it."""

    def __init__(self, client: EngineClient, metrics: ServerMetrics, watchers: Sequence[Watcher] = ()) -> None:
        super().__init__(client)
        self._metrics = metrics
        self._watchers = watchers
        self._timelines: dict[str, RequestTimeline] = {}

    async def generate(self, request: GenerateRequest, listener: Listener | None = None) -> AsyncGenerator[Event, None]:
        metrics = self._metrics
        arrived = arrival.get()
        timeline = RequestTimeline(request, time.perf_counter() if arrived is None else arrived, metrics.inter_token)
        self._timelines[request.request_id] = timeline
        failure: BaseException | None = None

        def note(update: SampleUpdate) -> None:
            first = timeline.first_token is None
            metrics.note_tokens(timeline.update(update))
            if first:
                metrics.note_first_token(timeline)

        def listen(update: SampleUpdate) -> bool:
            if listener is None or not listener(update):
                return False
            note(update)
            return True

        try:
            async with aclosing(self._engine.generate(request, listen if listener else None)) as events:
                async for event in events:
                    if isinstance(event, SampleUpdate):
                        note(event)
                    elif isinstance(event, RequestStarted):
                        timeline.start(event)
                        metrics.note_start(timeline)
                    else:
                        timeline.end(event)
                    yield event
        except BaseException as error:
            failure = error
            raise
        finally:
            if self._timelines.get(request.request_id) is timeline:
                del self._timelines[request.request_id]
            timeline.close(failure)
            metrics.note_end(timeline)
            for watcher in self._watchers:
                watcher.note_end(timeline)

    def end_sample(self, request_id: str, index: int) -> None:
        if (timeline := self._timelines.get(request_id)) is not None:
            timeline.end_sample(index)
        super().end_sample(request_id, index)


class ObservedHttp:
    """ASGI middleware: notes when requests arrive, and counts the answers."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        arrival.set(time.perf_counter())
        trace_headers.set(
            {
                name.decode("latin-1"): value.decode("latin-1")
                for name, value in scope["headers"]
                if name in (b"traceparent", b"tracestate")
            }
        )
        metrics = self._metrics

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "none")
                metrics.note_answer(_known_method(scope["method"]), route, message["status"])
            await send(message)

        await self._app(scope, receive, counted)


def observe_http(app: FastAPI, metrics: ServerMetrics) -> None:
    """Add `/metrics`, and count what the application answers."""

    async def show(request: Request) -> Response:
        content, content_type = metrics.exposition(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": content_type})

    app.add_api_route("/metrics", show, include_in_schema=False, response_model=None)
    app.add_middleware(ObservedHttp, metrics=metrics)


def _known_method(method: str) -> str:
    return method if method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH") else "other"
