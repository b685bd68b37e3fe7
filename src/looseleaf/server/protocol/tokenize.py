"""`/tokenize` and `/detokenize`, as vLLM has them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from looseleaf.server.protocol.base import Answer, Body, Items
from looseleaf.server.protocol.chat import MAX_MESSAGES, MAX_TOOLS, ChatMessage, TemplateVariables, Tool
from looseleaf.server.protocol.sampling import TokenId


class TokenizeBody(Body):
    """Either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[Items[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[Items[Tool], Field(max_length=MAX_TOOLS)] | None = None
    add_special_tokens: bool | None = None
    """None: for a prompt true; messages bring theirs along."""
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    chat_template_kwargs: TemplateVariables | None = None


class TokenizeAnswer(Answer):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeBody(Body):
    model: str | None = None
    tokens: Items[TokenId]


class DetokenizeAnswer(Answer):
    prompt: str
