"""What /metrics shows is well formed, adds up, and is what vLLM's dashboards ask for."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import get_args

import msgspec
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from looseleaf.scheduler import WaitingReason
from looseleaf.server.engine_families import _WAITING_REASONS
from looseleaf.server.engine_totals import _COUNTS, EngineTotals
from looseleaf.server.histogram import Histogram, steps_1_2_5
from looseleaf.server.interface import (
    ClientState,
    EngineCrashed,
    EngineStats,
    Event,
    GenerateRequest,
    Listener,
    ModelInfo,
    RequestEnd,
    RequestStarted,
    SampleUpdate,
)
from looseleaf.server.metrics import Prefix, ServerMetrics
from looseleaf.server.observed import ObservedEngine, observe_http
from server.metric_lint import parsed

INFO = ModelInfo(
    vocab_size=8, eos_token_ids=[0], max_model_len=64, largest_request=64, block_size=4, num_blocks=10, max_num_seqs=4
)
STATS = EngineStats(
    step=5,
    num_running=2,
    num_waiting=3,
    waiting_reason="blocks",
    block_size=4,
    total_blocks=10,
    free_blocks=4,
    cached_blocks=3,
    pinned_blocks=1,
    token_slots_used=19,
    token_slots_reserved=2,
    token_slots_wasted=3,
    preemptions=2,
    preempted_tokens=9,
    step_seconds={"schedule": 0.5, "run": 2.0, "send": 0.25, "step": 2.5},
)


class ScriptedEngine:
    """Says what it is told to."""

    def __init__(self, *script: Event | Exception) -> None:
        self.script = script
        self.state: ClientState = "ready"
        self.info = INFO
        self.num_restarts = 1
        self.closed = False

    def stats(self) -> EngineStats:
        return STATS

    async def generate(
        self, request: GenerateRequest, _listener: Listener | None = None
    ) -> AsyncGenerator[Event, None]:
        assert request.request_id == "r"
        try:
            for event in self.script:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.closed = True

    def end_sample(self, request_id: str, index: int) -> None:
        pass


def read(metrics: ServerMetrics) -> dict[str, float]:
    """Samples by name and the labels that are not everywhere, as `name{value,…}`."""
    text, _ = metrics.exposition()
    openmetrics, _ = metrics.exposition("application/openmetrics-text; version=1.0.0")
    families = parsed(text.decode(), openmetrics.decode())
    values = {}
    for family in families.values():
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name not in ("model_name", "engine")]
            values[sample.name + (f"{{{','.join(labels)}}}" if labels else "")] = sample.value
    return values


def drive(*script: Event | Exception, take: int | None = None, ends: int | None = None) -> dict[str, float]:
    """Run one request through; `take`: close after so many events; `ends`: the front ends this sample before."""
    engine = ScriptedEngine(*script)
    metrics = ServerMetrics(engine, "tiny")
    observed = ObservedEngine(engine, metrics)

    async def main() -> None:
        request = GenerateRequest(request_id="r", prompt_token_ids=[1, 2, 3], params={"max_tokens": 9})
        left = take
        async with aclosing(observed.generate(request)) as events:
            async for _ in events:
                if left is not None and (left := left - 1) <= 0:
                    if ends is not None:
                        observed.end_sample("r", ends)
                    break

    with suppress(EngineCrashed):
        asyncio.run(main())
    assert engine.closed
    return read(metrics)


START = RequestStarted("r", 2, queue_seconds=0.5, prefill_seconds=0.25)


@pytest.mark.parametrize("prefix", ["vllm", "looseleaf"])
def test_memory_adds_up(prefix: Prefix) -> None:
    values = read(ServerMetrics(ScriptedEngine(), "tiny", prefix=prefix))
    blocks = {name: value for name, value in values.items() if name.startswith("looseleaf_kv_blocks{")}
    slots = {name: value for name, value in values.items() if name.startswith("looseleaf_kv_token_slots{")}
    assert sum(blocks.values()) == 10
    assert sum(slots.values()) == 40
    assert blocks["looseleaf_kv_blocks{active}"] == 6
    start = {"vllm": "vllm:", "looseleaf": "looseleaf_"}[prefix]
    assert values[start + "kv_cache_usage_perc"] == pytest.approx(0.6)
    assert values[start + "num_requests_waiting"] == 3
    assert values["looseleaf_requests_waiting{blocks}"] == 3
    assert values["looseleaf_requests_waiting{seats}"] == 0
    assert values["looseleaf_preempted_tokens_total{recompute}"] == 9
    assert values["looseleaf_engine_restarts_total"] == 1
    assert values["looseleaf_engine_step_seconds_total{run}"] == 2.0
    assert any(name.startswith("vllm:") for name in values) == (prefix == "vllm")


def test_every_reason_to_wait_is_shown() -> None:
    assert set(_WAITING_REASONS) == set(get_args(WaitingReason))


def test_a_request_is_measured() -> None:
    values = drive(
        START,
        SampleUpdate("r", 0, [5]),
        SampleUpdate("r", 0, [6, 7]),
        SampleUpdate("r", 0, [8], "length"),
        RequestEnd("r"),
    )
    assert values["vllm:prompt_tokens_total"] == 3
    assert values["vllm:prompt_tokens_cached_total"] == 2
    assert values["vllm:generation_tokens_total"] == 4
    assert values["vllm:inter_token_latency_seconds_count"] == 3
    assert values["vllm:time_to_first_token_seconds_count"] == 1
    assert values["vllm:request_queue_time_seconds_sum"] == 0.5
    assert values["vllm:request_prefill_time_seconds_sum"] == 0.25
    assert values["vllm:request_generation_tokens_sum"] == 4
    assert values["vllm:request_params_max_tokens_sum"] == 9
    assert values["vllm:e2e_request_latency_seconds_count"] == 1
    assert values["vllm:request_success_total{length}"] == 1


def test_how_requests_end() -> None:
    token = SampleUpdate("r", 0, [5])
    ended = {
        "stop": [drive(START, SampleUpdate("r", 0, [5], "stop"), RequestEnd("r")), drive(START, token, take=2, ends=0)],
        "abort": [drive(START, token, take=2), drive(START, take=1)],
        "error": [
            drive(START, token, EngineCrashed("again", crashes=3)),
            drive(START, SampleUpdate("r", 0, [], "error", "nan"), RequestEnd("r")),
        ],
    }
    for reason, runs in ended.items():
        for values in runs:
            counts = {name: value for name, value in values.items() if "request_success" in name and value}
            assert counts == {f"vllm:request_success_total{{{reason}}}": 1}


@given(st.lists(st.floats(0, 100), max_size=50), st.integers(1, 3))
def test_histogram(values: list[float], times: int) -> None:
    bounds = [0.5, 1.0, 10.0]
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value, times)
    assert histogram.count == times * len(values)
    assert histogram.sum == pytest.approx(times * sum(values))
    expected = [times * sum(value <= bound for value in values) for bound in bounds]
    assert [count for _, count in histogram.buckets()] == [*expected, times * len(values)]
    assert bisect_left(bounds, 0.5) == 0  # bounds are inclusive


def test_steps() -> None:
    assert steps_1_2_5(25) == [1, 2, 5, 10, 20]
    assert steps_1_2_5(0) == [1]


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=5))
def test_counts_go_on_when_processes_die(lives: list[list[int]]) -> None:
    totals, seen, done = EngineTotals(), 0, 0
    for life in lives:
        totals.begin(INFO)
        assert totals.stats().free_blocks == INFO.num_blocks
        steps = 0
        for more in life:
            steps += more
            done += more
            stats = msgspec.structs.replace(STATS, **dict.fromkeys(_COUNTS, steps), step_seconds={"run": float(steps)})
            totals.take(stats)
            assert totals.stats().step == totals.stats().evictions == totals.stats().step_seconds["run"] == done >= seen
            seen = done


def test_http() -> None:
    app = FastAPI()
    metrics = ServerMetrics(ScriptedEngine(), "tiny")
    observe_http(app, metrics)
    client = TestClient(app)
    for _ in range(2):
        answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'looseleaf_http_requests_total{handler="/metrics",method="GET",status="200"} 1.0' in answer.text
    strict = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert strict.headers["content-type"].startswith("application/openmetrics-text")
    client.get("/what/anyone/writes")
    assert read(metrics)["looseleaf_http_requests_total{none,GET,404}"] == 1


OFFICIAL_DASHBOARD = """
e2e_request_latency_seconds_bucket e2e_request_latency_seconds_sum e2e_request_latency_seconds_count
prompt_tokens_total generation_tokens_total inter_token_latency_seconds_bucket inter_token_latency_seconds_sum
num_requests_running num_requests_waiting time_to_first_token_seconds_bucket kv_cache_usage_perc
request_prompt_tokens_bucket request_generation_tokens_bucket request_success_total request_queue_time_seconds_sum
request_prefill_time_seconds_sum request_decode_time_seconds_sum prefix_cache_hits_total prefix_cache_queries_total
num_preemptions_total
"""


def test_vllm_dashboards_find_what_they_ask_for() -> None:
    text = ServerMetrics(ScriptedEngine(), "tiny").exposition()[0].decode()
    for name in OFFICIAL_DASHBOARD.split():
        assert f'vllm:{name}{{engine="0"' in text, name
        series = next(line for line in text.splitlines() if line.startswith(f"vllm:{name}{{"))
        assert 'model_name="tiny"' in series
