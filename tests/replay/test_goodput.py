"""Latency targets: how they are written, and which requests meet them."""

from __future__ import annotations

import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.errors import ConfigurationError
from looseleaf.replay.goodput import Slo, goodput, parse_seconds


def requests(*rows: tuple[float, float, float, float, int]) -> pl.DataFrame:
    names = ["arrival", "admitted", "first_token", "finished", "output_tokens"]
    types = [pl.Float64, pl.Float64, pl.Float64, pl.Float64, pl.Int64]
    table = pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row")
    return table.with_columns(num_samples=pl.lit(1))


@pytest.mark.parametrize(
    ("text", "seconds"), [("2s", 2.0), ("100ms", 0.1), ("1.5", 1.5), (".5m", 30.0), ("2 MS", 0.002), ("1h", 3600.0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "2 weeks", "1e3", "nan"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigurationError, match="no duration"):
        parse_seconds(text)


def test_targets_are_parsed() -> None:
    assert Slo.parse("ttft=2s, itl=100ms") == Slo(ttft=2.0, tpot=0.1)
    assert Slo.parse("TPOT=50ms,e2e=1m") == Slo(tpot=0.05, e2e=60.0)
    assert str(Slo.parse("ttft=2s,itl=100ms")) == "ttft ≤ 2 s, tpot ≤ 0.1 s"


@pytest.mark.parametrize("text", ["", "ttft", "ttft=", "p99=2s", "ttft=1s,ttft=2s", "itl=1s,tpot=1s", "ttft=0s"])
def test_targets_that_make_no_sense(text: str) -> None:
    with pytest.raises(ConfigurationError):
        Slo.parse(text)


def test_a_request_counts_if_it_meets_every_target() -> None:
    table = requests(
        (0.0, 0.1, 1.0, 11.0, 101),  # TTFT 1, ITL 0.1
        (1.0, 1.1, 4.5, 5.0, 11),  # TTFT 3.5: too late
        (2.0, 2.1, 3.0, 5.0, 11),  # ITL 0.2: too slow
        (3.0, 3.0, 5.0, 5.0, 1),  # one token: no gap
    )
    result = goodput(table, Slo(ttft=2.0, tpot=0.1), seconds=11.0)
    assert (result.requests, result.met, result.output_tokens, result.seconds) == (4, 2, 102, 11.0)
    assert (result.share, result.requests_per_second) == (0.5, 2 / 11)
    assert result.tokens_per_second == 102 / 11
    assert goodput(table.with_columns(num_samples=2), Slo(ttft=1.0), seconds=1.0).output_tokens == 2 * (101 + 11)
    assert goodput(table, Slo(), seconds=1.0).met == 4


def test_what_was_refused_met_nothing() -> None:
    result = goodput(requests((0.0, 0.0, 1.0, 1.0, 1)), Slo(ttft=1.0), seconds=1.0, refused=3)
    assert (result.met, result.requests, result.share) == (1, 4, 0.25)


def test_nothing_asked_for() -> None:
    nothing = goodput(requests(), Slo(ttft=1.0), seconds=0.0)
    assert nothing.met == nothing.requests == 0
    assert math.isnan(nothing.share)
    assert math.isnan(nothing.requests_per_second)


rows = st.tuples(*[st.floats(0, 100) for _ in range(4)], st.integers(1, 50)).map(
    lambda row: (row[0], row[0] + row[1], row[0] + row[1] + row[2], row[0] + row[1] + row[2] + row[3], row[4])
)


@given(st.lists(rows, min_size=1, max_size=20), st.floats(0.01, 300), st.floats(0.01, 100), st.floats(0.01, 300))
def test_as_counted_one_by_one(
    table: list[tuple[float, float, float, float, int]], ttft: float, tpot: float, e2e: float
) -> None:
    met = [
        first - arrival <= ttft
        and (tokens == 1 or (finished - first) / (tokens - 1) <= tpot)
        and finished - arrival <= e2e
        for arrival, _, first, finished, tokens in table
    ]
    result = goodput(requests(*table), Slo(ttft, tpot, e2e), seconds=1.0)
    assert result.met == sum(met)
    assert result.output_tokens == sum(row[4] for row, ok in zip(table, met, strict=True) if ok)
