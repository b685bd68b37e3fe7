"""What a request returns. Field names are vLLM's, so code that reads its results reads these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from looseleaf.memory.prefix import Divergence

FinishReason = Literal["stop", "length", "abort", "error"]


class Logprob(NamedTuple):
    logprob: float
    rank: int | None = None
    """1 is the most likely token of the vocabulary."""
    decoded_token: str | None = None


@dataclass(slots=True)
class CompletionOutput:
    """One sample. While a request streams, `text` and `token_ids` are all so far."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    """Sum of the sampled tokens' logprobs; None unless logprobs were asked for or needed to rank samples."""
    score: float | None = None
    """With beams: what the outputs are ranked by, log-probability / length ** length_penalty."""
    logprobs: list[dict[int, Logprob]] | None = None
    """By position: token id to logprob; the sampled token and the most likely ones."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended the sample, or what went wrong; None for end-of-sequence,
    length and abort."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times in seconds on the engine's clock; None until it happened."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None


@dataclass(slots=True)
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = False
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """By prompt position; the first is None, as nothing predicts it."""
    metrics: RequestMetrics | None = None
    num_cached_tokens: int = 0
    """Prompt tokens that were not computed for this request: their keys and values were in the prefix cache."""
    cache_divergence: Divergence | None = None
    """Where the prompt first differed from the cached one most like it, if there was one that went on otherwise."""


def select_best(outputs: Sequence[CompletionOutput], n: int) -> list[CompletionOutput]:
    """The `n` samples of highest cumulative logprob, best first, numbered anew from 0 (`best_of`).

    A sample that failed comes last: it is likely only because it is short.
    """
    ranked = sorted(
        outputs,
        key=lambda output: (output.finish_reason == "error", -(output.cumulative_logprob or 0.0), output.index),
    )
    return [replace(output, index=index) for index, output in enumerate(ranked[:n])]
