"""One request of many that are handed over together."""

from __future__ import annotations

from typing import NamedTuple

from looseleaf.engine.prompts import Prompt, TokenPrompt
from looseleaf.engine.sampling_params import SamplingParams


class GenerationRequest(NamedTuple):
    """A plain `(prompt, params)` may stand for one without an adapter."""

    prompt: Prompt | TokenPrompt
    params: SamplingParams
    adapter: str | None = None


class ReadRequest(NamedTuple):
    """The same, tokenised and checked."""

    prompt: TokenPrompt
    params: SamplingParams
    adapter: str | None = None
