"""What all bodies have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

T = TypeVar("T")

MAX_JSON_DEPTH = 64
"""Objects and arrays within one another, where a body may hold any JSON."""
MAX_JSON_VALUES = 2**15
"""There, in all."""
MAX_UNKNOWN_FIELDS = 8
"""That are told of. Each finding costs a thousand times what its few bytes in the body do."""

Items = Annotated[list[T], Field(fail_fast=True)]
"""A list of a body: its first wrong item is told of, and no more are looked at."""


class Body(BaseModel):
    """A request's body: no coercion of types, and no field that is not meant."""

    model_config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _few_unknown(cls, value: Any) -> Any:
        if not isinstance(value, dict) or len(value) <= len(cls.model_fields) + MAX_UNKNOWN_FIELDS:
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        unknown = [name for name in value if name not in known]
        return {name: value[name] for name in [*(known & value.keys()), *unknown[:MAX_UNKNOWN_FIELDS]]}


class Answer(BaseModel):
    """A response's body, for the OpenAPI document: handlers write JSON without it."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def at_most(limit: int) -> BeforeValidator:
    """For a dictionary of a body: its size is looked at before its entries are."""

    def check(value: Any) -> Any:
        if isinstance(value, Mapping) and len(value) > limit:
            raise ValueError(f"has {len(value)} entries but may have {limit}")
        return value

    return BeforeValidator(check)


def deeper_than(value: Any, limit: int) -> bool:
    """Whether decoded JSON has more than `limit` objects and arrays within one another."""
    return any(depth > limit for part, depth in _parts(value) if isinstance(part, dict | list))


def _parts(value: Any) -> Iterator[tuple[Any, int]]:
    """Every value of decoded JSON, with its depth."""
    waiting = [(value, 1)]
    while waiting:
        part, depth = waiting.pop()
        yield part, depth
        if isinstance(part, dict | list):
            waiting.extend((item, depth + 1) for item in (part.values() if isinstance(part, dict) else part))


def _check_extent(value: Any) -> Any:
    for count, (part, depth) in enumerate(_parts(value)):
        if depth > MAX_JSON_DEPTH and isinstance(part, dict | list):
            raise ValueError(f"is nested more than {MAX_JSON_DEPTH} levels deep")
        if count == MAX_JSON_VALUES:
            raise ValueError(f"has more than {MAX_JSON_VALUES} values")
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_check_extent)]
