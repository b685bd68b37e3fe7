"""The replay: runs of steps at once change nothing, and what it says of small cases is right."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.errors import RequestTooLarge
from looseleaf.memory import ALLOCATORS
from looseleaf.replay.config import ReplayConfig
from looseleaf.replay.result import ReplayResult
from looseleaf.replay.simulator import replay
from looseleaf.replay.trace import TraceRequest
from looseleaf.scheduler import SchedulerConfig


class PlainCost:
    """An odd function of everything, so that no two kinds of step take the same time."""

    def seconds(self, *, num_tokens, num_seqs, num_sampled, context_tokens, attention_pairs):  # noqa: ARG002
        return 0.01 + num_tokens * 0.0013 + num_seqs * 0.00017 + num_sampled * 1e-5 + context_tokens * 0.00019

    def decode_seconds(self, *, num_seqs, context_tokens, num_steps):
        contexts = context_tokens + num_seqs * np.arange(num_steps)
        return 0.01 + num_seqs * 0.0013 + num_seqs * 0.00017 + num_seqs * 1e-5 + contexts * 0.00019

    def describe(self):
        return {"kind": "plain"}


class Listed:
    """A trace of the given requests."""

    name = "listed"

    def __init__(self, requests):
        self._requests = requests

    def requests(self):
        return iter(self._requests)


def drawn_trace(seed: int) -> tuple[Listed, ReplayConfig]:
    rng = random.Random(seed)
    now, requests = 0.0, []
    for _ in range(rng.randint(1, 14)):
        now += rng.choice([0.0, 0.0, rng.expovariate(2), rng.expovariate(20)])
        prompt = rng.randint(1, 40)
        shared = rng.randint(0, prompt)
        kind = rng.randrange(3)
        own = 1000 * (1 + len(requests))
        runs = [((kind * 100, shared), (own, prompt - shared)), None][rng.random() < 0.2]
        runs = runs and tuple(run for run in runs if run[1])
        requests.append(
            request(
                now,
                prompt,
                rng.choice([1, rng.randint(1, 60)]),
                runs=runs,
                tenant=rng.choice("ab"),
                priority=rng.randint(0, 2),
                num_samples=rng.choice([1, 1, 1, 2, 3]),
            )
        )
    config = ReplayConfig(
        rng.randint(6, 60),
        rng.randint(1, 6),
        allocator=rng.choice([ALLOCATORS[0], ALLOCATORS[0], *ALLOCATORS]),
        prefix_caching=rng.random() < 0.7,
        isolate_tenants=rng.random() < 0.3,
        scheduler=SchedulerConfig(
            max_num_batched_tokens=rng.choice([4, 16, 64]),
            max_num_seqs=rng.choice([3, 4, 8, 16]),
            max_model_len=120,
            watermark=rng.choice([0.0, 0.01, 0.2]),
            max_bypass=rng.choice([0, 2, 16]),
            policy=rng.choice(["fcfs", "priority", "fair"]),
        ),
        timeline_rows=rng.choice([4, 64]),
    )
    return Listed(requests), config


def request(arrival, prompt_tokens, output_tokens, **given):
    return TraceRequest(arrival, prompt_tokens, output_tokens, given.pop("runs", None), **given)


def assert_same(one: ReplayResult, other: ReplayResult) -> None:
    assert one.totals == other.totals
    for columns in ("request_columns", "timeline_columns"):
        left, right = getattr(one, columns)(), getattr(other, columns)()
        for name in left:
            assert list(left[name]) == list(right[name]), name
    for name, histogram in one.log.histograms.items():
        assert vars(histogram).keys() == vars(other.log.histograms[name]).keys()
        for key, value in vars(histogram).items():
            assert np.array_equal(value, vars(other.log.histograms[name])[key]), (name, key)


@given(seed=st.integers(0, 2**32))
@settings(deadline=None)
def test_steps_at_once_give_the_result_of_single_ones(seed: int) -> None:
    trace, config = drawn_trace(seed)
    assert_same(replay(trace, config, PlainCost()), replay(trace, config, PlainCost(), single_steps=True))


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=30)
def test_totals_agree_with_the_requests(seed: int) -> None:
    trace, config = drawn_trace(seed)
    result = replay(trace, config, PlainCost())
    totals, columns = result.totals, result.request_columns()
    given = list(trace.requests())
    assert totals.requests + totals.refused == len(given)
    assert totals.requests == len(columns["arrival"])
    assert totals.output_tokens == sum(columns["output_tokens"] * columns["num_samples"])
    assert totals.makespan == max(columns["finished"], default=0)
    assert np.all(columns["arrival"] <= columns["admitted"])
    assert np.all(columns["admitted"] < columns["first_token"])
    assert np.all(columns["first_token"] <= columns["finished"])
    assert sum(columns["num_preemptions"]) == totals.preemptions
    if totals.requests:
        assert sum(totals.slot_shares[kind] for kind in totals.slot_shares if kind != "cached") == pytest.approx(1)
    assert sum(totals.bound_seconds.values()) == pytest.approx(totals.busy_seconds)
    gaps = sum(columns["num_samples"] * (columns["output_tokens"] - 1))
    assert result.log.histograms["itl"].count <= gaps
    if config.allocator == "paged":
        assert result.log.histograms["itl"].count == gaps
    flat = replay(trace, config, PlainCost(), keep_requests=False)
    assert flat.totals == totals
    for name, row in result.percentiles().items():
        assert flat.percentiles()[name]["mean"] == pytest.approx(row["mean"], nan_ok=True)


def test_one_request_alone() -> None:
    cost = PlainCost()
    trace = Listed([request(2.0, 33, 3)])
    config = ReplayConfig(8, 16, scheduler=SchedulerConfig(max_num_batched_tokens=20))
    result = replay(trace, config, cost)
    first = cost.seconds(num_tokens=20, num_seqs=1, num_sampled=0, context_tokens=20, attention_pairs=210)
    second = cost.seconds(num_tokens=13, num_seqs=1, num_sampled=1, context_tokens=33, attention_pairs=351)
    decodes = cost.decode_seconds(num_seqs=1, context_tokens=34, num_steps=2)
    columns = result.request_columns()
    assert columns["first_token"][0] == pytest.approx(2 + first + second)
    assert columns["finished"][0] == pytest.approx(2 + first + second + decodes.sum())
    assert result.totals.busy_seconds == pytest.approx(result.totals.makespan - 2)
    assert result.totals.steps == 4
    assert result.totals.peak_blocks == 3


def test_what_can_never_run_is_counted_or_fatal() -> None:
    trace = Listed([request(0.0, 10, 10), request(0.0, 500, 10)])
    config = ReplayConfig(8, 16, scheduler=SchedulerConfig())
    assert replay(trace, config, PlainCost()).totals.refused == 1
    with pytest.raises(RequestTooLarge):
        replay(trace, replace(config, too_large="fatal"), PlainCost())


def test_a_prompt_that_was_seen_before_is_not_computed_again() -> None:
    runs = ((0, 64),)
    trace = Listed([request(0.0, 64, 4, runs=runs), request(50.0, 64, 4, runs=runs)])
    result = replay(trace, ReplayConfig(64, 16, scheduler=SchedulerConfig()), PlainCost())
    assert result.request_columns()["num_cached"].tolist() == [0, 63]
    assert result.totals.computed_tokens == 64 + 3 + 1 + 3
    off = replay(trace, ReplayConfig(64, 16, prefix_caching=False, scheduler=SchedulerConfig()), PlainCost())
    assert off.request_columns()["num_cached"].tolist() == [0, 0]
