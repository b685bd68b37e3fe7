"""Chat messages to the prompt text a model was trained on, by the model's own Jinja template."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jinja2

from looseleaf.errors import InvalidRequest, ModelError
from looseleaf.models.chat_sandbox import (
    METER,
    BoundedEnvironment,
    LimitExceeded,
    Meter,
    RefusedByTemplate,
    RenderLimits,
)

Message: TypeAlias = Mapping[str, Any]
"""`role` and `content` (text, or a list of parts), and whatever else the template reads."""

_LARGEST_SOURCE = 2**18  # characters; the templates in use have up to some 30,000
_REASONING = ("reasoning_content", "thinking", "reasoning")
_CALLS = ("tool_calls", "function_call")


class NoChatTemplate(InvalidRequest):
    """Chat messages for a model that has no chat template."""


class InvalidMessages(InvalidRequest):
    """A message without the shape of one. `index` says which, counted from 0; None: the list itself."""

    def __init__(self, message: str, *, index: int | None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.index = index


class MessagesRefused(InvalidRequest):
    """The template itself refuses these messages (their roles do not alternate, …); the message is its own."""


class ChatTemplateError(ModelError):
    """The template is no valid Jinja, fails on well-formed messages, or exceeds its limits."""


class ChatTemplate:
    """One compiled template. Renders as transformers' `apply_chat_template` does, within `limits`."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        limits: RenderLimits | None = None,
    ) -> None:
        """Compile `source`; `special_tokens` (role → text) become variables of the template.

        Raises:
            ChatTemplateError: not Jinja, or longer than a template can sensibly be.
        """
        if len(source) > _LARGEST_SOURCE:
            raise ChatTemplateError(f"The chat template has {len(source):,} characters (limit {_LARGEST_SOURCE:,}).")
        self.source = source
        self._special_tokens = dict(special_tokens or {})
        self._limits = limits or RenderLimits()
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError, SyntaxError, MemoryError) as error:
            raise ChatTemplateError(f"The chat template cannot be compiled: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt that `messages` make; `tools` are JSON schemas, `variables` whatever else the template reads.

        Raises:
            InvalidMessages: no messages, or one without role or content.
            MessagesRefused: the template called `raise_exception`.
            ChatTemplateError: the template failed, was refused something by the sandbox, or exceeded its limits.
        """
        known = self._special_tokens | {"documents": _plain(documents)} | {k: _plain(v) for k, v in variables.items()}
        known |= {
            "messages": [_prepared(message) for message in _checked(messages)],
            "tools": _plain(tools),
            "add_generation_prompt": add_generation_prompt,
        }
        meter = Meter(self._limits)
        token = METER.set(meter)
        try:
            return self._rendered(known, meter)
        except RefusedByTemplate as error:
            raise MessagesRefused(f"The chat template refuses these messages: {error}") from error
        except LimitExceeded as error:
            raise ChatTemplateError(f"The chat template was stopped: {error}.") from error
        except Exception as error:  # a template is a program: it can fail in any way
            raise ChatTemplateError(
                f"The chat template failed: {type(error).__name__}: {error}",
                hint="Its model may not take messages of this shape.",
            ) from error
        finally:
            METER.reset(token)

    def _rendered(self, known: Mapping[str, Any], meter: Meter) -> str:
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate(known):
            length += len(piece)
            meter.step()
            meter.size(length)
            pieces.append(piece)
        return "".join(pieces)


class ChatTemplates(Mapping[str, ChatTemplate]):
    """A model's templates by name, compiled when first used."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._special_tokens = dict(special_tokens)
        self._compiled: dict[str, ChatTemplate] = {}

    def __getitem__(self, name: str) -> ChatTemplate:
        if name not in self._compiled:
            self._compiled[name] = ChatTemplate(self._sources[name], self._special_tokens)
        return self._compiled[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def choose(self, *, with_tools: bool) -> ChatTemplate:
        """The template for tool use where there is one and tools are given, else the default.

        Raises:
            NoChatTemplate: there is none.
            ChatTemplateError: the template cannot be compiled.
        """
        for name in ("tool_use", "default") if with_tools else ("default",):
            if name in self._sources:
                return self[name]
        raise NoChatTemplate(
            "This model has no chat template.",
            hint="Send a plain prompt, or use the model's chat or instruct variant.",
        )


@functools.cache
def _environment() -> BoundedEnvironment:
    return BoundedEnvironment()


def _checked(messages: Sequence[Message]) -> Sequence[Message]:
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidMessages(f"Chat messages are a list, not a {type(messages).__name__}.", index=None)
    if not messages:
        raise InvalidMessages("There are no chat messages.", index=None, hint="Send at least one.")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidMessages(f"Message {index} is a {type(message).__name__}, not an object.", index=index)
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise InvalidMessages(
                f"Message {index} has no role.", index=index, hint='Give it a "role", such as "user".'
            )
        if content is None and not any(message.get(call) for call in _CALLS):
            raise InvalidMessages(f"Message {index} ({role}) has no content.", index=index, hint='Give it a "content".')
        if content is not None and not isinstance(content, (str, list, tuple)):
            raise InvalidMessages(
                f"Message {index} ({role}) has a {type(content).__name__} as content.",
                index=index,
                hint="Content is text, or a list of parts.",
            )
    return messages


def _prepared(message: Message) -> dict[str, Any]:
    """Without empty fields, on which templates fail or print "None", and with reasoning under each usual name."""
    filled = {str(key): _plain(value) for key, value in message.items() if value is not None}
    reasoning = next((filled[name] for name in _REASONING if name in filled), None)
    return filled if reasoning is None else {"thinking": reasoning, **filled, "reasoning_content": reasoning}


def _plain(value: Any) -> Any:
    """`value` made of plain data only: an object's methods are nothing a template may call."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return f"<{type(value).__name__}>"
