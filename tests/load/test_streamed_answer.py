"""An answer is read alike however its bytes arrive, and its times are those of the arrivals."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.load.streamed_answer import StreamedAnswer

DONE = b"data: [DONE]\n\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(text: str, index: int = 0, finish: str | None = None) -> bytes:
    return event(choices=[{"index": index, "text": text, "finish_reason": finish}])


def usage(prompt: int, output: int, cached: int | None = None) -> bytes:
    details = None if cached is None else {"cached_tokens": cached}
    return event(
        choices=[],
        usage={"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": details},
    )


def read(*pieces: tuple[bytes, float], status: int = 200) -> StreamedAnswer:
    answer = StreamedAnswer(1.0, 1.5)
    answer.on_status(status)
    for piece, now in pieces:
        answer.on_body(piece, now)
    answer.end(9.0)
    return answer


def test_times_of_a_completion() -> None:
    answer = read((text("a"), 2.0), (text("b"), 2.5), (text("", finish="stop") + usage(7, 3, 4) + DONE, 4.0))
    assert (answer.first, answer.gaps, answer.ended, answer.chunks) == (2.0, [0.5], 9.0, 2)
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (7, 3, 4)
    assert answer.failure is None


def test_times_of_a_chat_begin_with_its_text() -> None:
    def delta(**delta: Any) -> bytes:
        return event(choices=[{"index": 0, "delta": delta, "finish_reason": None}])

    answer = read(
        (delta(role="assistant", content=""), 2.0),
        (delta(content="Hi"), 3.0),
        (delta(tool_calls=[{"index": 0}]), 3.25),
        (event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}]) + DONE, 5.0),
    )
    assert (answer.first, answer.gaps, answer.failure) == (3.0, [0.25], None)


def test_samples_have_gaps_of_their_own() -> None:
    answer = read(
        (text("a"), 1.0),
        (text("x", 1), 2.0),
        (text("b"), 4.0),
        (text("y", 1, "length") + text("", 0, "stop") + DONE, 8.0),
    )
    assert (answer.first, answer.gaps, answer.finished) == (1.0, [3.0, 6.0], 2)


def test_an_answer_without_text_has_a_first_token_too() -> None:
    answer = read((text("", finish="stop") + DONE, 3.0))
    assert (answer.first, answer.gaps, answer.failure) == (3.0, [], None)


@given(st.lists(st.integers(0, 400), max_size=8))
def test_where_the_bytes_are_cut_does_not_matter(cuts: list[int]) -> None:
    whole = b": hello\r\n\r\n" + text("ä") + text("b", finish="stop").replace(b"\n", b"\r\n") + usage(3, 2) + DONE
    places = sorted({0, len(whole), *(cut % len(whole) for cut in cuts)})
    answer = read(*((whole[a:b], 2.0) for a, b in pairwise(places)))
    assert (answer.chunks, answer.finished, answer.output_tokens, answer.failure) == (2, 1, 2, None)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, text("a"), "stream broke off"),
        (200, text("a", finish="stop"), "stream broke off"),
        (200, DONE, "empty answer"),
        (200, b"data: {\n\n" + DONE, "unreadable event"),
        (
            200,
            text("a") + event(error={"message": "lost", "code": "engine_stopped"}) + DONE,
            "error event engine_stopped",
        ),
        (429, b'{"error": {"message": "full", "code": "queue_full"}}', "HTTP 429 queue_full"),
        (404, b'{\n"error": {"message": "no", "code": null}\n}', "HTTP 404"),
        (502, b"<html>\n</html>", "HTTP 502"),
    ],
)
def test_failures_by_kind(status: int, body: bytes, kind: str) -> None:
    assert read((body, 2.0), status=status).failure == kind


@given(st.binary(max_size=200))
def test_nonsense_is_a_failure(body: bytes) -> None:
    assert read((body, 2.0)).failure is not None
