"""Generated traces: the statistics that were asked for, the same at each reading, in the memory of a batch."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from looseleaf.replay.errors import InvalidSpec, InvalidTrace
from looseleaf.replay.generators import GeneratedTrace, parse_spec
from looseleaf.replay.generators.arrivals import parse_arrivals
from looseleaf.replay.generators.lengths import PUBLISHED, parse_lengths
from looseleaf.replay.trace import Trace
from looseleaf.replay.trace_source import open_trace, parse_columns

N = 40_000


def rows(trace: Trace | str) -> pl.DataFrame:
    return pl.concat((GeneratedTrace.parse(trace) if isinstance(trace, str) else trace).batches())


def arrivals(process: str, size: int = N) -> NDArray[np.float64]:
    return parse_arrivals(process).clock(np.random.default_rng(1))(size)


def test_the_issue_of_a_description() -> None:
    table = rows("n=450,arrivals=poisson:10,prompt=uniform:800-1200,output=uniform:4000-6000,seed=3")
    assert len(table) == 450
    assert table["prompt_tokens"].min() >= 800  # type: ignore[operator]
    assert table["output_tokens"].max() <= 6000  # type: ignore[operator]
    assert table["run_firsts"].null_count() == 450
    assert table["arrival"].is_sorted()


class TestArrivals:
    @pytest.mark.parametrize(
        ("process", "rate", "cv"),
        [("poisson:10", 10, 1), ("gamma:4:3", 4, 3), ("gamma:4:0.5", 4, 0.5), ("regular:5", 5, 0), ("gamma:2:1", 2, 1)],
    )
    def test_rate_and_cv(self, process: str, rate: float, cv: float) -> None:
        gaps = np.diff(arrivals(process), prepend=0)
        assert gaps.min() >= 0
        assert 1 / gaps.mean() == pytest.approx(rate, rel=0.06)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.06, abs=1e-9)

    def test_on_and_off(self) -> None:
        times = arrivals("onoff:20:10:30", 200_000)
        assert len(times) / times[-1] == pytest.approx(20 * 10 / 40, rel=0.15)
        gaps = np.diff(times)
        rests = gaps[gaps > 2]
        assert rests.mean() == pytest.approx(30 + 2, rel=0.15)
        assert gaps[gaps <= 2].mean() == pytest.approx(1 / 20, rel=0.05)

    def test_all_at_once(self) -> None:
        assert not arrivals("all").any()

    @pytest.mark.parametrize("process", ["poisson:3", "gamma:3:2", "onoff:9:1:2", "regular:2", "all"])
    def test_in_pieces(self, process: str) -> None:
        clock = parse_arrivals(process).clock(np.random.default_rng(1))
        pieces = np.concatenate([clock(size) for size in (1, 10, 600, 389)])
        np.testing.assert_allclose(pieces, arrivals(process, 1000), rtol=1e-12)


class TestLengths:
    @pytest.mark.parametrize(
        ("text", "mean", "std"),
        [
            ("700", 700, 0),
            ("uniform:800-1200", 1000, 401 / 12**0.5),
            ("lognormal:300:1.5", 300, 450),
            ("lognormal:20:0.5", 20, 10),
            ("histogram:10-19x3|100x1", (14.5 * 3 + 100) / 4, 37.1),
            ("sharegpt", PUBLISHED["sharegpt"][0], PUBLISHED["sharegpt"][0]),
        ],
    )
    def test_mean_and_deviation(self, text: str, mean: float, std: float) -> None:
        lengths = parse_lengths(text, "prompt")
        drawn = lengths.draw(np.random.default_rng(2), N)
        assert lengths.mean() == pytest.approx(mean)
        assert drawn.min() >= 1
        assert drawn.mean() == pytest.approx(mean, rel=0.03)
        assert drawn.std() == pytest.approx(std, rel=0.08)

    def test_published_means(self) -> None:
        # The paper's text: ShareGPT has 8.4 times longer prompts and 5.8 times longer outputs than Alpaca.
        ratios = [a / b for a, b in zip(PUBLISHED["sharegpt"], PUBLISHED["alpaca"], strict=True)]
        assert [round(ratio, 1) for ratio in ratios] == [8.4, 5.8]
        table = rows(f"n={N},lengths=alpaca")
        assert table["prompt_tokens"].mean() == pytest.approx(19.31, rel=0.03)
        assert table["output_tokens"].mean() == pytest.approx(58.45, rel=0.03)

    def test_a_longest(self) -> None:
        assert parse_lengths("lognormal:300:3:500", "output").draw(np.random.default_rng(2), N).max() == 500


def test_system_prompts_are_shared_and_nothing_else() -> None:
    trace = GeneratedTrace.parse("n=200,prompt=uniform:1-9,output=5,system=32x3")
    ids = [r.token_ids() for r in trace.requests()]
    heads = {tuple(each[:32].tolist()) for each in ids if each is not None}
    assert sorted(head[0] for head in heads) == [0, 32, 64]
    own = [int(each[32]) for each in ids if each is not None]
    assert len(set(own)) == 200


def test_a_turn_goes_on_where_the_one_before_ended() -> None:
    trace = GeneratedTrace.parse(
        "n=3000,arrivals=poisson:2,prompt=uniform:5-20,output=uniform:3-9,turns=uniform:1-6,think=30,system=16x2,tenants=4"
    )
    requests = list(trace.requests())
    assert len(requests) == 3000
    assert all(a.arrival <= b.arrival for a, b in pairwise(requests))
    talks: dict[str, list[int]] = {}
    for i, request in enumerate(requests):
        talks.setdefault(request.session, []).append(i)
    for turns in talks.values():
        assert len({requests[i].tenant for i in turns}) == 1
        for before, after in pairwise(turns):
            first, then = requests[before], requests[after]
            a, b = first.token_ids(), then.token_ids()
            assert a is not None
            assert b is not None
            assert (b[: len(a)] == a).all()
            assert 5 <= len(b) - len(a) - first.output_tokens <= 20
    counts = [len(turns) for turns in talks.values()]
    assert np.mean(counts) == pytest.approx(3.5, rel=0.1)
    gaps = [requests[b].arrival - requests[a].arrival for turns in talks.values() for a, b in pairwise(turns)]
    assert np.mean(gaps) == pytest.approx(30, rel=0.1)
    firsts = {requests[turns[0]].runs[1][0] for turns in talks.values()}  # type: ignore[index]
    assert len(firsts) == len(talks)


def test_tenants_by_weight() -> None:
    shares = rows(f"n={N},prompt=1,output=1,tenants=a:3|b:1")["tenant"].value_counts(normalize=True)
    assert dict(shares.iter_rows()) == pytest.approx({"a": 0.75, "b": 0.25}, abs=0.01)


specs = st.sampled_from(
    [
        "n=500,prompt=uniform:1-99,output=uniform:1-9,arrivals=poisson:3,tenants=3",
        "n=500,lengths=sharegpt,arrivals=onoff:9:2:3,system=10x4",
        "n=500,prompt=7,output=9,arrivals=gamma:3:2,turns=uniform:1-5,think=4,samples=2",
        "n=500,prompt=7,output=9,turns=3",
    ]
)


@settings(max_examples=20, deadline=None)
@given(spec=specs, seed=st.integers(0, 2**31 - 1))
def test_the_same_at_each_reading(spec: str, seed: int) -> None:
    trace = GeneratedTrace.parse(f"{spec},seed={seed}")
    first = list(trace.requests())
    assert len(first) == trace.num_requests == 500
    assert list(trace.requests()) == list(GeneratedTrace(trace.spec).requests()) == first
    assert all(a.arrival <= b.arrival for a, b in pairwise(first))


@pytest.mark.parametrize("spec", ["lengths=sharegpt,arrivals=gamma:3:2,system=10x4,tenants=3", "prompt=7,output=9"])
def test_a_longer_trace_begins_alike(spec: str) -> None:
    short, long = rows(f"n=100,{spec}"), rows(f"n=50000,{spec}")
    assert short.equals(long.head(100))
    assert len(long) == 50_000


def test_a_property_does_not_change_with_another() -> None:
    one, other = (
        rows("n=99,prompt=5,output=uniform:1-99,seed=4"),
        rows("n=99,prompt=uniform:1-9,output=uniform:1-99,seed=4"),
    )
    assert one["output_tokens"].equals(other["output_tokens"])
    assert not one["output_tokens"].equals(rows("n=99,prompt=5,output=uniform:1-99,seed=5")["output_tokens"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("n=10", "lacks prompt and output"),
        ("prompt=1,output=1", "lacks n"),
        ("n=0,prompt=1,output=1", "n is '0'"),
        ("n=x,prompt=1,output=1", "n is 'x'"),
        ("n=1,n=2", "given twice"),
        ("n=1,colour=2", "not known"),
        ("n=1,prompt", "no KEY=VALUE"),
        ("n=1,prompt=uniform:9-3,output=1", "the longest prompt is '3'"),
        ("n=1,prompt=uniform,output=1", "prompt is 'uniform'"),
        ("n=1,prompt=0,output=1", "the|prompt is '0'"),
        ("n=1,prompt=odd:3,output=1", "prompt is 'odd:3'"),
        ("n=1,prompt=lognormal:0.5:1,output=1", "mean prompt"),
        ("n=1,prompt=lognormal:nan:1,output=1", "mean prompt"),
        ("n=1,prompt=histogram:1x0|2x0,output=1", "weights"),
        ("n=1,prompt=1,output=1,arrivals=poisson:0", "rate"),
        ("n=1,prompt=1,output=1,arrivals=poisson", "arrivals is 'poisson'"),
        ("n=1,prompt=1,output=1,arrivals=odd:1", "arrivals is 'odd:1'"),
        ("n=1,prompt=1,output=1,arrivals=gamma:1:inf", "CV"),
        ("n=1,prompt=1,output=1,system=0", "system"),
        ("n=1,prompt=1,output=1,think=3", "no turns"),
        ("n=1,prompt=1,output=1,seed=-1", "seed"),
        ("n=1,lengths=odd", "lengths is 'odd'"),
        ("n=1,prompt=1,output=1,tenants=a:0", "weight"),
    ],
)
def test_what_makes_no_sense(text: str, says: str) -> None:
    with pytest.raises(InvalidSpec, match=says) as error:
        parse_spec(text)
    assert error.value.hint


@given(text=st.text(st.sampled_from("n=10,prompt:uxle-|.ft9"), max_size=40))
def test_any_text_is_a_description_or_refused(text: str) -> None:
    try:
        parse_spec(text)
    except InvalidSpec as error:
        assert error.message  # noqa: PT017


def test_by_what_a_person_types() -> None:
    assert open_trace("n=3,prompt=1,output=1").num_requests == 3
    with pytest.raises(InvalidTrace, match="no file"):
        open_trace("requests.jsonl")
    trace = open_trace("n=3,prompt=1,output=1", arrivals="regular:2")
    assert [r.arrival for r in trace.requests()] == [r.arrival for r in trace.requests()] == [0.5, 1.0, 1.5]
    assert parse_columns("arrival=ts, prompt=in") == {"arrival": "ts", "prompt": "in"}
    with pytest.raises(InvalidTrace, match="names no columns"):
        parse_columns("arrival")


def test_sessions_move_as_a_whole(tmp_path: Path) -> None:
    asks = [{"t": t, "in": 8, "out": 1, "runs": [[1, 2]]} for t in (1.0, 4.0, 30.0)]
    path = tmp_path / "sessions"
    path.write_text("\n".join(json.dumps({"id": i, "block_size": 4, "requests": asks}) for i in range(300)))
    trace = open_trace(path, arrivals="poisson:2")
    requests = list(trace.requests())
    assert (len(requests), trace.unit, trace.num_requests) == (900, 4, 900)
    assert requests == list(trace.requests())
    assert all(a.arrival <= b.arrival for a, b in pairwise(requests))
    times: dict[str, list[float]] = {}
    for request in requests:
        times.setdefault(request.session, []).append(request.arrival)
    assert all(np.diff(each).tolist() == pytest.approx([3.0, 26.0]) for each in times.values())
    assert np.diff([each[0] for each in times.values()]).mean() == pytest.approx(0.5, rel=0.2)
    assert any("sessions" in note for note in trace.origin.notes)


GENERATING = """
import resource, sys
from looseleaf.replay.generators import GeneratedTrace
for spec in sys.argv[1:]:
    rows = sum(len(batch) for batch in GeneratedTrace.parse(spec).batches())
    print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_a_million_requests_take_no_more_memory_than_a_hundred_thousand() -> None:
    form = "n={},arrivals=poisson:50,lengths=sharegpt,system=512x4,turns=uniform:1-6,think=20"
    found = subprocess.run(
        [sys.executable, "-c", GENERATING, form.format(100_000), form.format(1_000_000)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    (_, small), (number, large) = (map(int, line.split()) for line in found.splitlines())
    assert number == 1_000_000
    assert large - small < 15  # MiB
