"""JSON answers, and what the OpenAPI document says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from looseleaf.server.handlers.sse import json_bytes
from looseleaf.server.protocol.errors import ApiError, ErrorAnswer

ANSWERS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "What is wrong with the request, or that there is no room for it."},
    "5XX": {"model": ErrorAnswer, "description": "The server failed, or is not ready."},
}
_EVENT = {
    "type": "object",
    "properties": {"data": {"type": "string", "description": "A chunk as JSON; the last is [DONE]."}},
    "required": ["data"],
}
GENERATES = ANSWERS | {
    200: {
        "description": "The whole answer, or with `stream` its events.",
        "content": {"text/event-stream": {"schema": _EVENT}},
    }
}


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(value), status, dict(headers or {}), "application/json")


def error_response(error: ApiError) -> Response:
    return json_response(error.body(), error.status, error.headers)
