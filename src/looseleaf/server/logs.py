"""Logs of the front: one line per request with its id and sizes, as JSON or text. Never a prompt, unless asked for.

A log that cannot be written (a full disk, a closed pipe) is counted, and fails nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TextIO

import structlog

from looseleaf.server.request_timeline import RequestTimeline

LogFormat = Literal["text", "json"]


class LossyStream:
    """Writes lines to a stream; what cannot be written is told to `on_loss`, not raised."""

    def __init__(self, stream: TextIO, on_loss: Callable[[], None]) -> None:
        self._stream = stream
        self._on_loss = on_loss

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # ValueError: the stream is closed
            self._on_loss()
            return 0

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._on_loss()


class RequestLog:
    """A watcher that writes a line for each request that is over."""

    def __init__(
        self, stream: TextIO, *, format: LogFormat = "text", prompts: bool = False, on_loss: Callable[[], None]
    ) -> None:
        """`prompts`: write the prompt's token ids too."""
        self._prompts = prompts
        last: structlog.typing.Processor = (
            structlog.processors.JSONRenderer()
            if format == "json"
            else structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"])
        )
        self._logger: Any = structlog.wrap_logger(
            structlog.PrintLogger(LossyStream(stream, on_loss)),  # type: ignore[arg-type]
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                last,
            ],
            wrapper_class=structlog.BoundLogger,
        )

    def note_end(self, timeline: RequestTimeline) -> None:
        request = timeline.request
        fields: dict[str, Any] = {
            "request_id": request.request_id,
            "tenant": request.tenant,
            "outcome": timeline.outcome,
            "prompt_tokens": len(request.prompt_token_ids),
            "cached_tokens": timeline.cached_tokens,
            "generated_tokens": timeline.generated_tokens,
        }
        if timeline.ended is not None:
            fields["seconds"] = round(timeline.ended - timeline.arrived, 6)
        if timeline.first_token is not None:
            fields["first_token_seconds"] = round(timeline.first_token - timeline.arrived, 6)
        if isinstance(timeline.failure, Exception):
            fields["error"] = type(timeline.failure).__name__
        if self._prompts:
            fields["prompt_token_ids"] = request.prompt_token_ids
        self._logger.info("request", **fields)
