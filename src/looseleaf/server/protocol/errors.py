"""The OpenAI error object, and which one each typed error becomes."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from looseleaf.engine.prompts import InvalidPrompt
from looseleaf.engine.sampling_errors import InvalidGrammar, InvalidParameter, UnknownParameter
from looseleaf.errors import InvalidRequest, LooseleafError, RequestTooLarge
from looseleaf.models.chat_template import ChatTemplateError, InvalidMessages, MessagesRefused, NoChatTemplate
from looseleaf.server.interface import EngineCrashed, EngineStopped, RequestRefusedError
from looseleaf.server.protocol.base import Answer


class ErrorObject(Answer):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Answer):
    error: ErrorObject


class ApiError(LooseleafError):
    """An error that knows its HTTP status. Attributes: `status`, `type`, `param`, `code`, `headers`."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        hint: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.type = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        error = {"message": str(self), "type": self.type, "param": self.param, "code": self.code}
        return {"error": {name: text if text is None else printable(text) for name, text in error.items()}}


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}

_NOT_FOUND = "model_not_found"
_TOO_LONG = "context_length_exceeded"
_REFUSALS = {
    "UnknownAdapter": (404, _NOT_FOUND, "model"),
    "RequestTooLarge": (400, _TOO_LONG, None),
    "InvalidGrammar": (400, "invalid_grammar", "response_format"),
    "InvalidParameter": (400, "invalid_value", None),
    "UnknownParameter": (400, "unknown_parameter", None),
    "InvalidPrompt": (400, "invalid_prompt", "prompt"),
}
"""What the engine refuses, by the class of its error: status, code, and the field where the error names none."""

_FIELDS = {"beam_width": "beam_width", "structured": "response_format"}


def api_error(error: Exception) -> ApiError:
    """The error that a client is told of. What is no fault of the request says nothing about the inside."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RequestRefusedError):
        status, code, param = _REFUSALS.get(error.error, (400, "invalid_request", None))
        named = error.details.get("name")
        param = _FIELDS.get(named, named) if isinstance(named, str) else param
        return ApiError(status, error.message, param=param, code=code, hint=error.hint)
    if isinstance(error, InvalidParameter | UnknownParameter):
        code = "invalid_value" if isinstance(error, InvalidParameter) else "unknown_parameter"
        return ApiError(400, error.message, param=_FIELDS.get(error.name, error.name), code=code, hint=error.hint)
    if isinstance(error, RequestTooLarge):
        return ApiError(400, error.message, code=_TOO_LONG, hint=error.hint)
    if isinstance(error, InvalidMessages | MessagesRefused | NoChatTemplate | ChatTemplateError):
        return ApiError(400, error.message, param="messages", code="invalid_messages", hint=error.hint)
    if isinstance(error, InvalidGrammar):
        return ApiError(400, error.message, param="response_format", code="invalid_grammar", hint=error.hint)
    if isinstance(error, InvalidPrompt):
        return ApiError(400, error.message, param="prompt", code="invalid_prompt", hint=error.hint)
    if isinstance(error, InvalidRequest):
        return ApiError(400, error.message, code="invalid_request", hint=error.hint)
    if isinstance(error, EngineCrashed):
        return ApiError(500, error.message, code="engine_crashed", hint=error.hint)
    if isinstance(error, EngineStopped):
        return ApiError(503, error.message, code="engine_stopped", hint=error.hint)
    return ApiError(500, "Something went wrong inside the server.", code="internal_error")


def model_not_found(name: str, known: Sequence[str]) -> ApiError:
    return ApiError(
        404,
        f"There is no model {shortened(name)!r} here.",
        param="model",
        code=_NOT_FOUND,
        hint=f"Served: {', '.join(known)}.",
    )


def validation_error(errors: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> ApiError:
    """From pydantic's findings. `fields`: names of the body's fields, of which one that is misspelt may be meant."""
    # Of the branches of a union, the one that came furthest is the one that was meant.
    paths = [_field_path(error["loc"][1:]) for error in errors]
    where = max(paths, key=len)
    alike = [error for error, path in zip(errors, paths, strict=True) if path == where]
    first = alike[0]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).lstrip(".") or None
    kind = str(first["type"])
    if kind == "json_invalid":
        return ApiError(400, f"The body is no valid JSON: {first['ctx']['error']}.", code="invalid_json")
    if kind == "extra_forbidden":
        close = difflib.get_close_matches(str(where[-1]), fields, n=1) if where else []
        hint = f"Did you mean {close[0]!r}?" if close and close[0] != where[-1] else ""
        name = shortened(param or "?")
        return ApiError(400, f"{name} is not supported.", param=name, code="unknown_parameter", hint=hint)
    if kind == "none_required":
        return ApiError(400, f"{param} is not supported.", param=param, code="unsupported_parameter")
    if kind == "model_attributes_type" and not where:
        return ApiError(400, "The body is no JSON object sent as application/json.", code="invalid_json")
    code = "missing_required_parameter" if kind == "missing" else "invalid_value"
    found = "; or: ".join(dict.fromkeys(str(error["msg"]) for error in alike))
    return ApiError(400, f"{shortened(param or 'The body')}: {found}.", param=param, code=code)


def _field_path(parts: Sequence[str | int]) -> list[str | int]:
    """Without the branches of unions, such as `list[int]` or a message's role, that pydantic puts into the path."""
    path: list[str | int] = []
    for before, part in zip((None, *parts), parts, strict=False):
        if isinstance(part, str) and (
            any(mark in part for mark in "[(")
            or part in _BRANCHES
            or before == "response_format"
            or (isinstance(before, int) and part in _ROLES)
        ):
            continue
        path.append(part)
    return path


_BRANCHES = {
    "str",
    "int",
    "float",
    "bool",
    "dict",
    "none",
    "constrained-str",
    "constrained-int",
    "TextPart",
    "NamedTool",
}
_ROLES = {"system", "developer", "user", "assistant", "tool"}


def shortened(text: str, limit: int = 100) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def printable(text: str) -> str:
    """Without halves of surrogate pairs, which a client can write as JSON escapes and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8")


def finite(value: float) -> float:
    """JSON has no infinity: the logprob of what cannot come is a very small number, as OpenAI has it."""
    return value if math.isfinite(value) else -9999.0
