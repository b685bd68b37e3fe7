"""The log has ids and sizes, no prompts; a disk that is full harms no request."""

from __future__ import annotations

import errno
import io
import json
import logging
import re
import time
from collections.abc import Callable

import pytest

from looseleaf.server.histogram import Histogram
from looseleaf.server.interface import GenerateRequest, RequestStarted, SampleUpdate
from looseleaf.server.log_format import LogFormat, logs_written, render
from looseleaf.server.logs import RequestLog
from looseleaf.server.request_timeline import RequestTimeline


class FullDisk(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def timeline() -> RequestTimeline:
    request = GenerateRequest(request_id="cmpl-1", prompt_token_ids=[4711, 4712], tenant="acme")
    line = RequestTimeline(request, time.perf_counter(), Histogram([1.0]))
    line.start(RequestStarted("cmpl-1", 1))
    line.update(SampleUpdate("cmpl-1", 0, [7, 8], "stop"))
    line.close(None)
    return line


def test_json_has_ids_and_sizes() -> None:
    stream = io.StringIO()
    RequestLog(stream, format="json", on_loss=pytest.fail).note_end(timeline())
    record = json.loads(stream.getvalue())
    assert record["request_id"] == "cmpl-1"
    assert (record["prompt_tokens"], record["cached_tokens"], record["generated_tokens"]) == (2, 1, 2)
    assert (record["tenant"], record["outcome"], record["level"]) == ("acme", "stop", "info")


@pytest.mark.parametrize("format", ["json", "text"])
def test_prompts_only_if_asked_for(format: LogFormat) -> None:
    silent, open_ = io.StringIO(), io.StringIO()
    RequestLog(silent, format=format, on_loss=pytest.fail).note_end(timeline())
    RequestLog(open_, format=format, prompts=True, on_loss=pytest.fail).note_end(timeline())
    assert "4711" not in silent.getvalue()
    assert "4711" in open_.getvalue()


def test_a_full_disk_is_counted_and_fails_nobody() -> None:
    lost: list[int] = []
    log = RequestLog(FullDisk(), on_loss=lambda: lost.append(1))
    log.note_end(timeline())
    assert lost
    closed = io.StringIO()
    closed.close()
    RequestLog(closed, on_loss=lambda: lost.append(1)).note_end(timeline())
    assert len(lost) >= 2


def written(format: LogFormat, log: Callable[[logging.Logger], None]) -> str:
    stream = io.StringIO()
    with logs_written(stream, format=format, source="engine", level="info", on_loss=pytest.fail):
        log(logging.getLogger("looseleaf.server"))
    return stream.getvalue()


def test_all_lines_look_alike() -> None:
    stream = io.StringIO()
    RequestLog(stream, on_loss=pytest.fail).note_end(timeline())
    when = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(
        when + r" WARNING engine: Ended 3 requests\n", written("text", lambda log: log.warning("Ended %d requests", 3))
    )
    assert re.fullmatch(when + r" INFO engine: Read\n", written("text", lambda log: log.info("Read")))
    assert re.match(
        when + r" INFO front: request request_id=cmpl-1 tenant=acme outcome=stop prompt_tokens=2", stream.getvalue()
    )
    record = json.loads(written("json", lambda log: log.info("Read")))
    assert record.keys() == {"timestamp", "level", "source", "event"}


def test_an_exception_is_part_of_its_record() -> None:
    def fail(log: logging.Logger) -> None:
        try:
            raise ValueError("no")
        except ValueError:
            log.exception("It failed")

    assert json.loads(written("json", fail))["exception"].endswith("ValueError: no")
    assert "It failed\nTraceback" in written("text", fail)


@pytest.mark.parametrize("value", ["a b", 'a"b', "a=b", "", "a\nINFO front: forged"])
def test_a_value_cannot_pose_as_another(value: str) -> None:
    line = render({"timestamp": "t", "level": "info", "source": "front", "event": "request", "tenant": value}, "text")
    assert line == f"t INFO front: request tenant={value!r}"
