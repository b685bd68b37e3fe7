"""The parts of a request's time add up to the whole."""

from __future__ import annotations

import time

import pytest

from looseleaf.server.histogram import Histogram
from looseleaf.server.interface import GenerateRequest, RequestStarted, SampleUpdate
from looseleaf.server.request_timeline import RequestTimeline


def test_what_the_engine_did_not_see_was_spent_in_the_queue() -> None:
    """It takes requests between steps: one that comes in the middle of a long step waits unseen."""
    now = time.perf_counter()
    line = RequestTimeline(GenerateRequest(request_id="r", prompt_token_ids=[1]), now - 5.0, Histogram([1.0]))
    line.start(RequestStarted("r", 0, queue_seconds=0.5, prefill_seconds=2.0))
    line.update(SampleUpdate("r", 0, [1]))
    assert line.first_token is not None
    assert line.queue_seconds + line.prefill_seconds == pytest.approx(line.first_token - line.arrived, abs=0.5)
    assert line.queue_seconds >= 3.0
