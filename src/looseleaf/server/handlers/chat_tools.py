"""What `tools` and `tool_choice` of a chat mean for its prompt, its output and its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from looseleaf.server.protocol.chat import ChatBody, NamedTool, Tool
from looseleaf.server.protocol.errors import ApiError
from looseleaf.server.tool_calls import CallReader, ForcedCalls, NamedCall, TaggedCalls, arguments_schema, forced_schema


class ToolUse:
    """Raises an `ApiError` for choices that contradict the tools."""

    def __init__(self, body: ChatBody) -> None:
        tools = body.tools or []
        choice = body.tool_choice or ("auto" if tools else "none")
        names = [tool.function.name for tool in tools]
        if len(set(names)) < len(names):
            raise _refused("tools", "Two tools have the same name.")
        if choice != "none" and not tools:
            raise _refused("tool_choice", "There is a tool_choice and no tools.")
        self._named: Tool | None = None
        if isinstance(choice, NamedTool):
            if choice.function.name not in names:
                raise _refused("tool_choice", f"There is no tool {choice.function.name!r}.")
            self._named = tools[names.index(choice.function.name)]
        if choice == "auto":
            for index, tool in enumerate(tools):
                if tool.function.strict:
                    raise _refused(
                        f"tools[{index}].function.strict",
                        "A strict tool is only supported with tool_choice 'required' or a named tool.",
                        hint="With 'auto' the model writes calls freely: leave strict out.",
                    )
        self._parallel = body.parallel_tool_calls
        self._tools = tools
        self._choice = choice

    @property
    def shown(self) -> Sequence[Tool]:
        """Those that the prompt describes."""
        return () if self._choice == "none" else self._tools

    def structured(self) -> dict[str, Any] | None:
        """What the output must be for a call to come out; None: that is up to the model."""
        if self._named is not None:
            return {"json_schema": arguments_schema(self._named)}
        if self._choice == "required":
            return {"json_schema": forced_schema(self._tools, parallel=self._parallel)}
        return None

    def reader(self) -> CallReader | None:
        """A new one for each sample; None: text is text."""
        if self._named is not None:
            return NamedCall(self._named.function.name)
        if self._choice == "required":
            return ForcedCalls()
        return TaggedCalls(parallel=self._parallel) if self._choice == "auto" else None

    def finish_reason(self, reason: str, num_calls: int) -> str:
        """OpenAI's: a call that the client itself named ends with "stop"."""
        return "tool_calls" if reason == "stop" and num_calls and self._named is None else reason


def _refused(param: str, message: str, hint: str = "") -> ApiError:
    return ApiError(400, message, param=param, code="invalid_value", hint=hint)
