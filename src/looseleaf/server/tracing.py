"""OpenTelemetry spans of a request: queue, prefill and decode under one, made when it is over.

The packages are optional: whoever configures tracing gives a tracer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import looseleaf
from looseleaf.errors import ConfigurationError
from looseleaf.server.request_timeline import RequestTimeline

EXPORT_SECONDS = 5
"""For one attempt to send spans, and for the last ones when the server ends."""


class RequestTracer:
    """A watcher. Attribute names are those of OpenTelemetry's conventions for generative AI."""

    def __init__(self, tracer: Any, model_name: str, parent: Callable[[], Any] = lambda: None) -> None:
        """`tracer`: an `opentelemetry.trace.Tracer`. `parent`: the context of the HTTP request being handled."""
        self._tracer = tracer
        self._model_name = model_name
        self._parent = parent

    def note_end(self, timeline: RequestTimeline) -> None:
        if timeline.ended is None:
            return
        from opentelemetry import trace

        shift = time.time() - time.perf_counter()
        began, ended = timeline.arrived, timeline.ended
        span = self._tracer.start_span(
            "llm_request",
            context=self._parent(),
            kind=trace.SpanKind.SERVER,
            start_time=_nanoseconds(began + shift),
            attributes=self._attributes(timeline),
        )
        if isinstance(timeline.failure, Exception):
            span.set_status(trace.Status(trace.StatusCode.ERROR, type(timeline.failure).__name__))
        if timeline.first_token is not None:
            computed = timeline.first_token - timeline.prefill_seconds
            queued = computed - timeline.queue_seconds
            context = trace.set_span_in_context(span)
            for name, start, end in (
                ("queue", queued, computed),
                ("prefill", computed, timeline.first_token),
                ("decode", timeline.first_token, ended),
            ):
                part = self._tracer.start_span(
                    name, context=context, start_time=_nanoseconds(max(start, began) + shift)
                )
                part.end(end_time=_nanoseconds(max(end, began) + shift))
        span.end(end_time=_nanoseconds(ended + shift))

    def _attributes(self, timeline: RequestTimeline) -> dict[str, Any]:
        request, params = timeline.request, timeline.request.params
        attributes: dict[str, Any] = {
            "gen_ai.provider.name": "looseleaf",
            "gen_ai.request.model": self._model_name,
            "gen_ai.response.id": request.request_id,
            "gen_ai.response.finish_reasons": [reason for _, reason in sorted(timeline.finish_reasons.items())],
            "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
            "gen_ai.usage.output_tokens": timeline.generated_tokens,
            "gen_ai.usage.cache_read.input_tokens": timeline.cached_tokens,
        }
        for name in ("temperature", "top_p", "max_tokens"):
            if isinstance(params.get(name), int | float):
                attributes[f"gen_ai.request.{name}"] = params[name]
        if timeline.first_token is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = timeline.first_token - timeline.arrived
        return attributes


class TraceExport:
    """Sends spans to an OpenTelemetry collector, over HTTP, from a thread of its own."""

    def __init__(self, endpoint: str) -> None:
        """`endpoint`: such as http://127.0.0.1:4318/v1/traces. Raises `ConfigurationError`."""
        if not endpoint.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"{endpoint!r} is no address to send traces to.",
                hint="Write for example http://127.0.0.1:4318/v1/traces.",
            )
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise ConfigurationError(
                "Tracing needs OpenTelemetry, which is not installed.", hint="pip install 'looseleaf[tracing]'"
            ) from error
        # What OTEL_RESOURCE_ATTRIBUTES says comes first.
        resource = Resource({"service.name": "looseleaf", "service.version": looseleaf.__version__})
        self._provider = TracerProvider(resource=resource.merge(Resource.create()), shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS))
        )

    def tracer(self) -> Any:
        return self._provider.get_tracer("looseleaf", looseleaf.__version__)

    def close(self) -> None:
        """Send what is left. Takes a few seconds at most, if nobody is there to take it."""
        self._provider.force_flush(EXPORT_SECONDS * 1000)
        self._provider.shutdown()


def parent_context(headers: Mapping[str, str] | None) -> Any:
    """From traceparent and tracestate; None without."""
    if not headers:
        return None
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(dict(headers))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
