"""Chat messages and tools to the tokens of a prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from looseleaf.errors import InvalidRequest
from looseleaf.models.tokenizer import Tokenizer
from looseleaf.server.protocol.base import MAX_JSON_DEPTH, deeper_than
from looseleaf.server.protocol.chat import (
    AssistantMessage,
    ChatMessage,
    Content,
    SystemMessage,
    Tool,
    ToolCall,
    ToolMessage,
)
from looseleaf.server.special_text import SpecialTexts

_RESERVED = {"messages", "tools", "documents", "add_generation_prompt", "self"}
_TOOL_INTRODUCTION = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
"""Nous Research's Hermes format, in the words of Qwen's templates."""


class ChatPrompts:
    """Makes prompts by the model's own template. Tools that it does not take are described in the system message."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = SpecialTexts(tokenizer)

    def encode(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool] = (),
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Raises `InvalidRequest` for messages that are none, and the chat template's own errors."""
        variables = dict(variables or {})
        if bad := [name for name in variables if name in _RESERVED or not re.fullmatch(r"[A-Za-z]\w*", name)]:
            raise InvalidRequest(f"{bad[0]!r} is no variable that chat_template_kwargs can set.")
        templates = self._tokenizer.chat_templates
        template = templates.choose(with_tools=bool(tools))
        native = "tools" in template.source
        plain: list[dict[str, Any]] = [_plain_message(message, native) for message in messages]
        described = [tool.model_dump(exclude_none=True) for tool in tools]
        if described and not native:
            _introduce(plain, described)
        mark = self._special.mark()
        guard = self._special.guarded
        text = template.render(
            guard(plain, mark),
            tools=guard(described, mark) if described and native else None,
            add_generation_prompt=add_generation_prompt,
            **guard(variables, mark),
        )
        return self._special.encode(text, mark)


def content_text(content: Content | None) -> str | None:
    """The text of a content; parts are lines."""
    return content if content is None or isinstance(content, str) else "\n".join(part.text for part in content)


def _plain_message(message: ChatMessage, native_tools: bool) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": content_text(message.content)}
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, SystemMessage):
        plain["role"] = "system"  # "developer" is OpenAI's newer name, which models were not trained on
    elif isinstance(message, AssistantMessage):
        if message.reasoning_content is not None:
            plain["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            calls = [_called(call) for call in message.tool_calls]
            if native_tools:
                plain["tool_calls"] = calls
            else:
                written = [f"<tool_call>\n{json.dumps(c['function'], ensure_ascii=False)}\n</tool_call>" for c in calls]
                plain["content"] = "\n".join(filter(None, [plain["content"], *written]))
    elif isinstance(message, ToolMessage):
        if native_tools:
            plain["tool_call_id"] = message.tool_call_id
        else:
            plain |= {"role": "user", "content": f"<tool_response>\n{plain['content']}\n</tool_response>"}
    return plain


def _called(call: ToolCall) -> dict[str, Any]:
    """Templates print the arguments of an earlier call as JSON, so they get them decoded."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict) or deeper_than(arguments, MAX_JSON_DEPTH):
        raise InvalidRequest(f"The arguments of the tool call {call.id!r} are no JSON object.")
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _introduce(plain: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> None:
    """Put the tools into the system message."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    text = _TOOL_INTRODUCTION.format(tools=listed)
    if plain[0]["role"] == "system":
        plain[0]["content"] = f"{plain[0]['content']}\n\n{text}"
    else:
        plain.insert(0, {"role": "system", "content": text})
