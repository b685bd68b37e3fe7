"""Figures against a run worked out by hand."""

from __future__ import annotations

import pytest

from looseleaf.errors import InvalidRequest
from looseleaf.load.driver import LoadRun
from looseleaf.load.figures import Target, details, summary
from looseleaf.load.streamed_answer import StreamedAnswer


def answer(scheduled: float, sent: float, chunks: list[float], ended: float, tokens: int) -> StreamedAnswer:
    made = StreamedAnswer(scheduled, sent)
    made.on_status(200)
    for at in chunks:
        made.on_body(b'data: {"choices": [{"text": "a"}]}\n', at)
    usage = b'"usage": {"prompt_tokens": 10, "completion_tokens": %d}' % tokens
    made.on_body(b'data: {"choices": [{"finish_reason": "length"}], %s}\ndata: [DONE]\n' % usage, ended)
    made.end(ended)
    return made


def refused(scheduled: float, ended: float) -> StreamedAnswer:
    made = StreamedAnswer(scheduled, scheduled)
    made.on_status(429)
    made.end(ended)
    return made


def run() -> LoadRun:
    answers = [
        answer(100.0, 100.0, [100.5, 100.7, 101.0], 101.5, 5),
        answer(100.0, 101.0, [102.0], 102.0, 1),  # sent a second late
        refused(101.0, 101.2),
    ]
    return LoadRun(duration=2.0, cpu_seconds=0.1, started=100.0, answers=answers)


def test_summary() -> None:
    found = summary(run(), Target.parse("ttft=1s,itl=300ms"))
    assert (found["completed"], found["failed"], found["failures"]) == (2, 1, {"HTTP 429": 1})
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (20, 6)
    assert (found["request_throughput"], found["output_throughput"], found["total_token_throughput"]) == (1, 3, 13)
    assert (found["max_concurrent_requests"], found["client_cpu_share"]) == (3, 0.05)
    near = pytest.approx
    # From when it was due: the one sent late has the time that it waited.
    assert (found["mean_ttft_ms"], found["max_ttft_ms"]) == (near(1250), near(2000))
    assert (found["mean_e2el_ms"], found["median_itl_ms"]) == (near(1750), near(250))
    assert found["mean_tpot_ms"] == near(250)  # of the one with more than one token
    assert (found["max_lateness_ms"], found["median_lateness_ms"]) == (near(1000), 0)
    assert (found["request_goodput"], found["good_share"]) == (0.5, near(1 / 3))


def test_details() -> None:
    found = details(run())
    assert found["start_times"] == [0, 0, 1]
    assert found["ttfts"] == [0.5, 2.0, 0.0]
    assert found["output_lens"] == [5, 1, 0]
    assert found["itls"] == [pytest.approx([0.2, 0.3]), [], []]
    assert found["errors"] == ["", "", "HTTP 429"]


def test_of_nothing() -> None:
    assert summary(LoadRun(answers=[refused(0, 1)]))["completed"] == 0
    assert summary(LoadRun())["max_concurrent_requests"] == 0


@pytest.mark.parametrize("text", ["", "ttft", "ttft=2", "ttft=-1s", "speed=1s", "ttft=nans", "itl=1s,", "ttft=1m"])
def test_a_target_that_is_none(text: str) -> None:
    with pytest.raises(InvalidRequest, match="no latency target"):
        Target.parse(text)


def test_targets() -> None:
    assert Target.parse("ttft=2s, itl=100ms,e2e=1.5s").limits == {"ttft": 2.0, "tpot": 0.1, "e2el": 1.5}
