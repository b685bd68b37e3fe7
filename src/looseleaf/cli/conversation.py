"""The turns of a chat, kept within the model's context."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, replace

from looseleaf.engine.adapters import adapter_number
from looseleaf.engine.engine import Engine
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.errors import RequestTooLarge
from looseleaf.scheduler.interface import StepPlan

Message = dict[str, str]

ROOM_FOR_AN_ANSWER = 128
"""Tokens that the context must leave where answers have no limit of their own."""


@dataclass(slots=True)
class AnswerCost:
    """What the latest answer took."""

    prompt_tokens: int = 0
    num_blocks: int = 0
    """Of the pool."""
    context: int = 0
    """Tokens that one conversation may have."""
    output_tokens: int = 0
    first_token_seconds: float = 0.0
    seconds: float = 0.0
    peak_blocks: int = 0
    dropped_turns: int = 0
    """Oldest questions, with their answers, that were forgotten to make room."""
    failure: str | None = None
    """Why the engine gave the answer up, if it did."""

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens after the first; of all if there is one."""
        decoding = self.seconds - self.first_token_seconds
        return (self.output_tokens - 1) / decoding if self.output_tokens > 1 else self.output_tokens / self.seconds


class Conversation:
    """`ask` adds a question, streams the answer and remembers both."""

    def __init__(self, engine: Engine, params: SamplingParams, system: str | None, adapter: str | None = None) -> None:
        """Raises `UnknownAdapter`."""
        adapter_number(engine.model.adapters, adapter)
        self._adapter = adapter
        self._engine = engine
        self._params = params
        room = min(ROOM_FOR_AN_ANSWER, engine.scheduler.largest_request // 2)
        # What gives way to what fits would leave an answer a token at the context's end rather than drop a turn.
        limited = params.max_tokens is not None and not params.max_tokens_is_default
        self._must_fit = params if limited else replace(params, max_tokens=max(room, 1, params.min_tokens))
        self._beginning: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._turns: list[Message] = []
        self.cost = AnswerCost()

    @property
    def messages(self) -> list[Message]:
        return [*self._beginning, *self._turns]

    def reset(self) -> None:
        self._turns.clear()

    def ask(self, question: str) -> Generator[str]:
        """Yield the answer as it comes, a piece per step, "" included. Closing the iterator stops it; what came is
        remembered.

        Raises `RequestTooLarge` if the question alone is too long; the conversation is then as it was.
        """
        prompt, kept = self._fitting([*self._turns, {"role": "user", "content": question}])
        self.cost = AnswerCost(
            prompt_tokens=len(prompt.token_ids),
            num_blocks=self._engine.memory.num_blocks,
            context=self._engine.scheduler.largest_request,
            dropped_turns=(len(self._turns) + 1 - len(kept)) // 2,
        )
        self._turns = kept
        return self._answer(prompt)

    def _fitting(self, turns: list[Message]) -> tuple[TokenPrompt, list[Message]]:
        """The prompt of the latest of `turns` that leave room for an answer; an answer goes with its question."""
        while True:
            prompt = self._engine.read_prompt([*self._beginning, *turns])
            try:
                self._engine.check("this conversation", prompt, self._must_fit)
            except RequestTooLarge:
                if len(turns) == 1:
                    raise
                turns = turns[2:]
            else:
                return prompt, turns

    def _answer(self, prompt: TokenPrompt) -> Generator[str]:
        engine, cost = self._engine, self.cost
        pieces: list[str] = []
        started = time.perf_counter()
        request_id = engine.add_request(prompt, self._params, adapter=self._adapter)
        engine.on_plan = self._count_blocks
        try:
            while engine.has_unfinished():
                deltas = [delta for delta in engine.step() if delta.request_id == request_id]
                cost.seconds = time.perf_counter() - started
                for delta in deltas:
                    cost.output_tokens += len(delta.token_ids)
                    if cost.output_tokens == 1:
                        cost.first_token_seconds = cost.seconds
                    if delta.finish_reason == "error":
                        cost.failure = str(delta.stop_reason)
                    pieces.append(delta.text)
                yield "".join(delta.text for delta in deltas)
        finally:
            engine.on_plan = None
            pieces += (delta.text for delta in engine.abort(request_id))
            self._turns.append({"role": "assistant", "content": "".join(pieces)})

    def _count_blocks(self, _plan: StepPlan) -> None:
        memory = self._engine.memory
        self.cost.peak_blocks = max(self.cost.peak_blocks, memory.num_blocks - memory.num_free_blocks)
