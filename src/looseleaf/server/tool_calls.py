"""Finds tool calls in a model's text, and says what output a forced call must be.

Models that were trained on tools write `<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes, Qwen, SmolLM).
The text may arrive in any pieces; a call is reported whole when it ends, and what is no call stays text.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from looseleaf.server.protocol.chat import Tool

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MAX_FORCED_CALLS = 16


class Call(NamedTuple):
    id: str
    name: str
    arguments: str
    """A JSON object, as text."""


class CallReader(Protocol):
    """Reads one sample. Both methods return what is now final, in order: text to show, and calls."""

    def push(self, text: str) -> list[str | Call]: ...

    def finish(self) -> list[str | Call]: ...


class TaggedCalls:
    """Text with calls between tags, as models write of their own accord. Not `parallel`: calls after the first are
    left out."""

    def __init__(self, *, parallel: bool = True) -> None:
        self._parallel = parallel
        self._waiting = ""
        self._inside = False
        self._called = False
        self._space = ""
        """Held back after a call: between calls it is the format's, before text the text's."""

    def push(self, text: str) -> list[str | Call]:
        found: list[str | Call] = []
        self._waiting += text
        while True:
            tag = _CLOSE if self._inside else _OPEN
            start = self._waiting.find(tag)
            if start < 0:
                break
            before, self._waiting = self._waiting[:start], self._waiting[start + len(tag) :]
            self._take(before, found, closed=True)
            self._inside = not self._inside
        if not self._inside:
            keep = _overlap(self._waiting, _OPEN)
            before, self._waiting = (
                self._waiting[: len(self._waiting) - keep],
                self._waiting[len(self._waiting) - keep :],
            )
            self._take(before, found)
        return found

    def finish(self) -> list[str | Call]:
        found: list[str | Call] = []
        self._take(self._waiting, found)
        self._waiting = ""
        return found

    def _take(self, text: str, found: list[str | Call], *, closed: bool = False) -> None:
        if self._inside:
            call = _parsed(text)
            if call is not None and self._called and not self._parallel:
                return
            if call is not None:
                self._called, self._space = True, ""
                found.append(call)
                return
            # Many models end their turn instead of closing the last tag.
            text = f"{_OPEN}{text}{_CLOSE if closed else ''}"
        text, self._space = self._space + text, ""
        if self._called and (not text or text.isspace()):
            self._space = text
        elif text:
            found.append(text)


class ForcedCalls:
    """The whole output is the JSON list of calls that `forced_schema` describes."""

    def __init__(self) -> None:
        self._text: list[str] = []

    def push(self, text: str) -> list[str | Call]:
        self._text.append(text)
        return []

    def finish(self) -> list[str | Call]:
        text = "".join(self._text)
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError):  # cut off by max_tokens
            return [text] if text else []
        calls = [call for item in listed if (call := _call(item))] if isinstance(listed, list) else []
        return list(calls) or [text]


class NamedCall:
    """The whole output is the arguments of one known function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._text: list[str] = []

    def push(self, text: str) -> list[str | Call]:
        self._text.append(text)
        return []

    def finish(self) -> list[str | Call]:
        return [Call(_new_id(), self._name, "".join(self._text))]


def forced_schema(tools: Sequence[Tool], *, parallel: bool) -> dict[str, Any]:
    """A list of calls of any of `tools`: one, or with `parallel` several."""
    items = [
        {
            "type": "object",
            "properties": {"name": {"const": tool.function.name}, "arguments": arguments_schema(tool)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    most = _MAX_FORCED_CALLS if parallel else 1
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": most,
        "items": items[0] if len(items) == 1 else {"anyOf": items},
    }


def arguments_schema(tool: Tool) -> dict[str, Any]:
    parameters = tool.function.parameters
    return parameters if parameters else {"type": "object", "properties": {}, "additionalProperties": False}


def _parsed(text: str) -> Call | None:
    try:
        return _call(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _call(value: Any) -> Call | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, dict):
        return None
    return Call(_new_id(), value["name"], json.dumps(arguments, ensure_ascii=False))


def _new_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that `tag` begins with."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)
