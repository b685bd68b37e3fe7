"""Token counts, and what every generating answer begins with."""

from __future__ import annotations

from typing import Literal

from looseleaf.server.protocol.base import Answer

FinishReason = Literal["stop", "length", "tool_calls"]


class PromptTokensDetails(Answer):
    cached_tokens: int
    """Prompt tokens that were found in the prefix cache."""


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
