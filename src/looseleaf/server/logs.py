"""The log of requests: one line per request with its id and sizes, as JSON or text. Never a prompt, unless asked for.

A log that cannot be written (a full disk, a closed pipe) is counted, and fails nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog

from looseleaf.server.log_format import LogFormat, render, timestamp
from looseleaf.server.log_stream import LogSink, LossyStream
from looseleaf.server.request_timeline import RequestTimeline


class RequestLog:
    """A watcher that writes a line for each request that is over."""

    def __init__(
        self, stream: LogSink, *, format: LogFormat = "text", prompts: bool = False, on_loss: Callable[[], None]
    ) -> None:
        """`prompts`: write the prompt's token ids too."""
        self._prompts = prompts

        def stamp(_logger: Any, level: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
            first = {
                "timestamp": timestamp(time.time()),
                "level": level,
                "source": "front",
                "event": event.pop("event"),
            }
            return {**first, **event}

        def last(_logger: Any, _level: str, event: structlog.typing.EventDict) -> str:
            return render(event, format)

        self._logger: Any = structlog.wrap_logger(
            structlog.WriteLogger(LossyStream(stream, on_loss)),  # type: ignore[arg-type]
            processors=[stamp, last],
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
