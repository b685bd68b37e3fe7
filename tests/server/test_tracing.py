"""A request leaves one span with three parts, under the trace that its client names."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from looseleaf.errors import ConfigurationError
from looseleaf.server.tracing import RequestTracer, TraceExport, parent_context
from server.test_logs import timeline


def test_spans() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry's SDK is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    parent = parent_context({"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})
    RequestTracer(provider.get_tracer("test"), "tiny", lambda: parent).note_end(timeline())
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"llm_request", "queue", "prefill", "decode"}
    whole = spans["llm_request"]
    assert all(format(span.context.trace_id, "032x") == trace_id for span in spans.values())
    assert whole.attributes["gen_ai.usage.input_tokens"] == 2
    assert whole.attributes["gen_ai.usage.cache_read.input_tokens"] == 1
    assert whole.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert "4711" not in str(dict(whole.attributes))
    assert spans["prefill"].end_time == spans["decode"].start_time
    assert all(whole.start_time <= span.start_time <= span.end_time <= whole.end_time for span in spans.values())


class Collector(BaseHTTPRequestHandler):
    received: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_spans_reach_a_collector() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="OpenTelemetry's exporter is not installed")
    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        traces = TraceExport(f"http://127.0.0.1:{collector.server_port}/v1/traces")
        RequestTracer(traces.tracer(), "tiny").note_end(timeline())
        traces.close()
        collector.shutdown()
        thread.join()
    sent = b"".join(Collector.received)
    assert all(each in sent for each in (b"llm_request", b"prefill", b"decode", b"looseleaf", b"tiny", b"cmpl-1"))


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:4318", "grpc://127.0.0.1:4317"])
def test_an_endpoint_that_is_none(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="no address"):
        TraceExport(endpoint)
