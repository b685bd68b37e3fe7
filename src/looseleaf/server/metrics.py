"""What `/metrics` shows. What vLLM has too is named, labelled and measured as there; the rest begins with looseleaf_.

Nothing here is global, and figures are put together when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from looseleaf.server.engine_families import engine_families
from looseleaf.server.histogram import Histogram, steps_1_2_5
from looseleaf.server.interface import EngineClient, EngineStopped
from looseleaf.server.log_stream import LostRecords
from looseleaf.server.request_timeline import OUTCOMES, RequestTimeline, number_of
from looseleaf.server.settings import Prefix

PREFIXES: dict[Prefix, str] = {"vllm": "vllm:", "looseleaf": "looseleaf_"}

_OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_FIRST_TOKEN = [
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
]
_PER_TOKEN = [
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
]
_PER_REQUEST = [
    *(0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
]
_TOKENS = steps_1_2_5(200_000)
_SAMPLES = [1.0, 2.0, 5.0, 10.0, 20.0]

_HISTOGRAMS: dict[str, tuple[str, list[float]]] = {
    "time_to_first_token_seconds": ("From the arrival of a request to its first token.", _FIRST_TOKEN),
    "inter_token_latency_seconds": ("Between two tokens of a sample, as they leave the server.", _PER_TOKEN),
    "request_time_per_output_token_seconds": ("Mean time per output token after the first, by request.", _PER_TOKEN),
    "e2e_request_latency_seconds": ("From the arrival of a request to its end.", _PER_REQUEST),
    "request_queue_time_seconds": ("Until the first step that a request is part of.", _PER_REQUEST),
    "request_inference_time_seconds": ("From that step to the end.", _PER_REQUEST),
    "request_prefill_time_seconds": ("From that step to the first token.", _PER_REQUEST),
    "request_decode_time_seconds": ("From the first token to the end.", _PER_REQUEST),
    "request_prompt_tokens": ("Length of the prompt.", _TOKENS),
    "request_generation_tokens": ("Tokens of all samples of a request.", _TOKENS),
    "request_max_num_generation_tokens": ("Tokens of the longest sample of a request.", _TOKENS),
    "request_params_max_tokens": ("What requests ask for with max_tokens.", _TOKENS),
    "request_params_n": ("What requests ask for with n.", _SAMPLES),
}


class ServerMetrics(Collector):
    """Figures of one front and its engine. For the front's event loop."""

    def __init__(
        self,
        client: EngineClient,
        model_name: str,
        *,
        prefix: Prefix = "vllm",
        lost_records: LostRecords | None = None,
    ) -> None:
        """`model_name`: the label that dashboards select by. `prefix`: how what vLLM has too is named.
        `lost_records`: of the log."""
        self._client = client
        self._prefix = PREFIXES[prefix]
        self._labels = {"model_name": model_name, "engine": "0"}
        self._histograms = {name: Histogram(bounds) for name, (_, bounds) in _HISTOGRAMS.items()}
        self.inter_token = self._histograms["inter_token_latency_seconds"]
        self._prompt_tokens = self._cached_prompt_tokens = self._generated_tokens = 0
        self._outcomes = dict.fromkeys(OUTCOMES, 0)
        self._answers: dict[tuple[str, str, str], int] = {}
        self._lost_records = lost_records or LostRecords()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def note_start(self, timeline: RequestTimeline) -> None:
        self._prompt_tokens += len(timeline.request.prompt_token_ids)
        self._cached_prompt_tokens += timeline.cached_tokens

    def note_tokens(self, count: int) -> None:
        self._generated_tokens += count

    def note_first_token(self, timeline: RequestTimeline) -> None:
        if timeline.first_token is not None:
            self._histograms["time_to_first_token_seconds"].observe(timeline.first_token - timeline.arrived)

    def note_end(self, timeline: RequestTimeline) -> None:
        """Requests that the engine refused or that never began count by their outcome only."""
        self._outcomes[timeline.outcome] += 1
        if not timeline.started or timeline.ended is None:
            return
        seen, params = self._histograms, timeline.request.params
        seen["e2e_request_latency_seconds"].observe(timeline.ended - timeline.arrived)
        seen["request_queue_time_seconds"].observe(timeline.queue_seconds)
        seen["request_prefill_time_seconds"].observe(timeline.prefill_seconds)
        decode = 0.0
        if timeline.first_token is not None:
            decode = timeline.ended - timeline.first_token
            seen["request_decode_time_seconds"].observe(decode)
            if timeline.longest_output > 1:
                seen["request_time_per_output_token_seconds"].observe(decode / (timeline.longest_output - 1))
        seen["request_inference_time_seconds"].observe(timeline.prefill_seconds + decode)
        seen["request_prompt_tokens"].observe(len(timeline.request.prompt_token_ids))
        seen["request_generation_tokens"].observe(timeline.generated_tokens)
        seen["request_max_num_generation_tokens"].observe(timeline.longest_output)
        seen["request_params_n"].observe(number_of(params.get("n"), 1))
        if (most := number_of(params.get("max_tokens"), 0)) > 0:
            seen["request_params_max_tokens"].observe(most)

    def note_answer(self, method: str, route: str, status: int) -> None:
        """An HTTP answer. `route` is a template, never what the client wrote."""
        key = (method, route, str(status))
        self._answers[key] = self._answers.get(key, 0) + 1

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The text for a scraper that sends this `Accept` header, and its content type."""
        if "application/openmetrics-text" in accept:
            # All names are legal in every version of the formats; by default the encoder would replace their colons.
            encoded: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
                self.registry, openmetrics.ALLOWUTF8, "1.0.0"
            )
            return encoded, _OPENMETRICS
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        client = self._client
        try:
            info = client.info
        except EngineStopped:
            info = None
        yield from engine_families(
            client.stats(), info, self._prefix, self._labels, restarts=client.num_restarts, state=client.state
        )
        yield from self._request_families()
        answers = CounterMetricFamily(
            "looseleaf_http_requests", "HTTP requests answered.", labels=["method", "handler", "status"]
        )
        for key, count in self._answers.items():
            answers.add_metric(key, count)
        yield answers
        lost = CounterMetricFamily(
            "looseleaf_log_records_lost", "Log records that could not be written (a full disk, a closed pipe)."
        )
        lost.add_metric([], self._lost_records.count)
        yield lost

    def _request_families(self) -> Iterator[Metric]:
        names, values = list(self._labels), list(self._labels.values())
        for name, documentation, value in (
            ("prompt_tokens", "Prompt tokens of requests, those found in the prefix cache too.", self._prompt_tokens),
            ("prompt_tokens_cached", "Of these, those found in the prefix cache.", self._cached_prompt_tokens),
            ("generation_tokens", "Tokens generated and handed on.", self._generated_tokens),
        ):
            counter = CounterMetricFamily(self._prefix + name, documentation, labels=names)
            counter.add_metric(values, value)
            yield counter
        ends = CounterMetricFamily(
            self._prefix + "request_success", "Requests that ended, by how.", labels=[*names, "finished_reason"]
        )
        for outcome, count in self._outcomes.items():
            ends.add_metric([*values, outcome], count)
        yield ends
        for name, (documentation, _) in _HISTOGRAMS.items():
            histogram = HistogramMetricFamily(self._prefix + name, documentation, labels=names)
            seen = self._histograms[name]
            histogram.add_metric(values, buckets=seen.buckets(), sum_value=seen.sum)
            yield histogram
