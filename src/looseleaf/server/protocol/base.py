"""What all bodies have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

MAX_JSON_DEPTH = 64
"""Objects and arrays within one another, where a body may hold any JSON."""


class Body(BaseModel):
    """A request's body: no coercion of types, and no field that is not meant."""

    model_config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)


class Answer(BaseModel):
    """A response's body, for the OpenAPI document: handlers write JSON without it."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def deeper_than(value: Any, limit: int) -> bool:
    """Whether decoded JSON has more than `limit` objects and arrays within one another."""
    waiting = [(value, 1)]
    while waiting:
        part, depth = waiting.pop()
        if isinstance(part, dict | list):
            if depth > limit:
                return True
            waiting.extend((item, depth + 1) for item in (part.values() if isinstance(part, dict) else part))
    return False


def _check_depth(value: Any) -> Any:
    if deeper_than(value, MAX_JSON_DEPTH):
        raise ValueError(f"is nested more than {MAX_JSON_DEPTH} levels deep")
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_check_depth)]
