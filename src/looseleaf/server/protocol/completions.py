"""`/v1/completions`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from looseleaf.server.protocol.base import Answer, Items
from looseleaf.server.protocol.sampling import MAX_LOGPROBS, MAX_TOKEN_COUNT, GenerationBody, TokenId
from looseleaf.server.protocol.usage import Usage

MAX_PROMPTS = 2048
MAX_SAMPLES = 4096
"""Of all prompts together."""

TokenPrompt = Annotated[Items[TokenId], Field(min_length=1)]
TextPrompt = Annotated[str, Field(min_length=1)]


class CompletionBody(GenerationBody):
    prompt: (
        TextPrompt
        | TokenPrompt
        | Annotated[Items[TextPrompt], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[Items[TokenPrompt], Field(min_length=1, max_length=MAX_PROMPTS)]
    )
    """Text or token ids, or several of one kind: choice `prompt × n + sample`."""
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKEN_COUNT)] | None = 16
    """0: only with `echo`, to have the prompt rated. null: as many as fit."""
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool = False
    add_special_tokens: bool = True
    """Frame a text prompt as the model was trained (usually a leading BOS)."""
    suffix: None = None


class CompletionLogprobs(Answer):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: int | str | None


class Completion(Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
