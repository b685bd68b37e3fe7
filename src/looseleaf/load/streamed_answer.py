"""What came of one request: its stream of events, read as it arrives, and the times in it."""

from __future__ import annotations

import msgspec


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Error(msgspec.Struct):
    message: str = ""
    code: str | int | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_DECODER = msgspec.json.Decoder(_Event)


class StreamedAnswer:
    """A `Reader`. Times are `time.perf_counter` seconds.

    A chunk with text counts as one, however many tokens its text is of; the time between two of a sample is a gap.
    """

    __slots__ = (
        "_complete",
        "_last",
        "_rest",
        "cached_tokens",
        "chunks",
        "ended",
        "failure",
        "finished",
        "first",
        "gaps",
        "output_tokens",
        "prompt_tokens",
        "scheduled",
        "sent",
        "status",
    )

    def __init__(self, scheduled: float, sent: float) -> None:
        """`scheduled`: when it was due; `sent`: when it was sent."""
        self.scheduled = scheduled
        self.sent = sent
        self.status = 0
        self.first: float | None = None
        """When the first text came; without any text, the end of the first sample."""
        self.ended = sent
        self.gaps: list[float] = []
        self.chunks = 0
        self.finished = 0
        """Samples that gave a reason for their end."""
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens = 0
        self.failure: str | None = None
        """Its kind: few of them, so that they can be counted."""
        self._last: dict[int, float] = {}
        self._rest = b""
        self._complete = False

    def on_status(self, status: int) -> None:
        self.status = status

    def on_body(self, data: bytes, now: float) -> None:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if self.status == 200:
            for line in lines:
                if line.startswith(b"data:"):
                    self._read(line[5:].strip(), now)
        elif lines:
            self._rest = b"\n".join([*lines, self._rest])

    def end(self, now: float, failure: str | None = None) -> None:
        """There is no more of it. `failure`: what ended it, if not the server."""
        self.ended = now
        if self.failure is not None:
            return
        if failure is not None:
            self.failure = failure
        elif self.status != 200:
            self.failure = f"HTTP {self.status}{_code(self._rest)}"
        elif not self._complete:
            self.failure = "stream broke off"
        elif not self.finished:
            self.failure = "empty answer"

    def _read(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self._complete = True
            return
        try:
            event = _DECODER.decode(payload)
        except msgspec.DecodeError:
            self.failure = "unreadable event"
            return
        if event.error is not None:
            self.failure = f"error event {event.error.code or ''}".rstrip()
        if (usage := event.usage) is not None:
            self.prompt_tokens, self.output_tokens = usage.prompt_tokens, usage.completion_tokens
            if usage.prompt_tokens_details is not None:
                self.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0
        for choice in event.choices:
            delta = choice.delta
            if choice.text or (delta is not None and (delta.content or delta.reasoning_content or delta.tool_calls)):
                self._note_text(choice.index, now)
            if choice.finish_reason is not None:
                self.finished += 1
                if self.first is None:
                    self.first = now

    def _note_text(self, index: int, now: float) -> None:
        self.chunks += 1
        last = self._last.get(index)
        if last is not None:
            self.gaps.append(now - last)
        elif self.first is None:
            self.first = now
        self._last[index] = now


def _code(body: bytes) -> str:
    """ " queue_full", from an error object that has a code."""
    try:
        code = msgspec.json.decode(body, type=_Event).error
    except msgspec.DecodeError:
        return ""
    return f" {code.code}" if code is not None and code.code is not None else ""
