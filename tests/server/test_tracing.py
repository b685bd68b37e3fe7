"""A request leaves one span with three parts, under the trace that its client names."""

from __future__ import annotations

import pytest

from looseleaf.server.tracing import RequestTracer, parent_context
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
