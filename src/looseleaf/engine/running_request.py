"""The engine's side of a request: its tokens, texts and logprobs. The scheduler's side is counts alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from looseleaf.engine.beam_search import BeamSearch
from looseleaf.engine.logprobs import TokenLogprobs
from looseleaf.engine.outputs import (
    CompletionOutput,
    FinishReason,
    Logprob,
    RequestMetrics,
    RequestOutput,
    select_best,
)
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.engine.stop import Finish, StopChecker
from looseleaf.scheduler.interface import Request, Sequence


@dataclass(slots=True)
class SampleDelta:
    """What one step added to one sample of a request."""

    request_id: str
    index: int
    text: str
    """New text that is final: never half a character, never part of a stop string."""
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    request_output: RequestOutput | None = None
    """The whole result, with the delta that ends the request."""


@dataclass(eq=False, slots=True)
class RunningSample:
    """One sample: output so far, and where it sits while it runs."""

    request: RunningRequest
    sequence: Sequence
    stop: StopChecker
    seat: int = -1
    token_ids: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    cumulative_logprob: float = 0.0
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    score: float | None = None

    @property
    def known_tokens(self) -> list[int]:
        return self.request.prompt.token_ids + self.token_ids

    def append(self, token_id: int, logprobs: TokenLogprobs | None) -> str:
        """Take a sampled token; returns the text that may now be shown."""
        self.token_ids.append(token_id)
        if logprobs is not None:
            self.cumulative_logprob += logprobs.logprob
            if self.request.params.logprobs is not None:
                self.logprobs.append(logprobs.as_dict(self.request.decode_token))
        text = self.stop.advance(token_id)
        self.text.append(text)
        return text

    def resume(self, token_id: int) -> None:
        """Take a token that an earlier run has sampled and shown."""
        self.token_ids.append(token_id)
        self.text.append(self.stop.advance(token_id))

    def end(self, finish: Finish) -> str:
        """End from outside; returns the text that was held back."""
        text = self.stop.end(finish)
        self.text.append(text)
        return text

    def delta(self, text: str, token_ids: list[int]) -> SampleDelta:
        """What is to be shown of it: `text` and `token_ids` are new."""
        finish = self.stop.finish
        return SampleDelta(
            self.request.request.request_id,
            self.sequence.sample,
            text,
            token_ids,
            self.logprobs[-1:] if token_ids and self.logprobs else None,
            finish.reason if finish else None,
            finish.stop_reason if finish else None,
        )

    def output(self) -> CompletionOutput:
        params, finish = self.request.params, self.stop.finish
        return CompletionOutput(
            index=self.sequence.sample,
            text="".join(self.text),
            token_ids=list(self.token_ids),
            cumulative_logprob=self.cumulative_logprob if params.needs_logprobs else None,
            score=self.score,
            logprobs=list(self.logprobs) if params.logprobs is not None else None,
            finish_reason=finish.reason if finish else None,
            stop_reason=finish.stop_reason if finish else None,
        )


@dataclass(eq=False, slots=True)
class RunningRequest:
    request: Request
    prompt: TokenPrompt
    params: SamplingParams
    seed: int
    metrics: RequestMetrics
    decode_token: Callable[[int], str] | None
    """None: logprobs come without their tokens' texts."""
    adapter: int = -1
    """The model's number of it; -1: none."""
    search: BeamSearch | None = None
    """With beams; `samples` are the beams then, and at the end the first `n` of them the outputs."""
    samples: list[RunningSample] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob] | None] = field(default_factory=lambda: [None])
    """By prompt position, as far as the prompt has been computed."""

    @property
    def finished(self) -> bool:
        return all(sample.stop.finish is not None for sample in self.samples)

    @property
    def outputs(self) -> list[RunningSample]:
        """The samples that are returned; with `best_of` they are chosen at the end."""
        return self.samples if self.search is None else self.samples[: self.params.n]

    def whole_deltas(self) -> list[SampleDelta]:
        """With beams there is nothing to show before the end, and then everything at once."""
        deltas = [entry.delta("".join(entry.text), list(entry.token_ids)) for entry in self.outputs]
        for delta, entry in zip(deltas, self.outputs, strict=True):
            delta.logprobs = list(entry.logprobs) or None
        return deltas

    def output(self) -> RequestOutput:
        """The result so far; with `best_of`, the best `n` once all have finished."""
        outputs = [sample.output() for sample in self.outputs]
        if self.search is None and self.finished and self.params.num_samples > self.params.n:
            outputs = select_best(outputs, self.params.n)
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.prompt.text,
            prompt_token_ids=list(self.prompt.token_ids),
            outputs=outputs,
            finished=self.finished,
            prompt_logprobs=list(self.prompt_logprobs) if self.params.prompt_logprobs is not None else None,
            metrics=self.metrics,
            num_cached_tokens=self.request.num_cached_prompt_tokens or 0,
            cache_divergence=self.request.divergence,
        )
