"""Runs the requests that one HTTP request becomes, and gives their pieces in the order in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.server.front import Front
from looseleaf.server.handlers.sampling import engine_keywords
from looseleaf.server.interface import (
    EngineStopped,
    GenerateRequest,
    Listener,
    PositionLogprobs,
    RequestEnd,
    RequestStarted,
    SampleUpdate,
)
from looseleaf.server.output_stream import OutputStream, Piece
from looseleaf.server.protocol.errors import ApiError
from looseleaf.server.settings import Caller

_PIECES_AHEAD = 64


@dataclass(frozen=True, slots=True)
class Shortcut:
    """Where pieces can go on the spot, while nothing is before them; most of a stream's do."""

    ready: Callable[[], bool]
    """Whether the next piece may be given to `take`."""
    take: Callable[[Piece], None]


@dataclass(slots=True)
class PromptRun:
    """One prompt on its way."""

    request: GenerateRequest
    streams: list[OutputStream]
    open_streams: int
    cached_tokens: int = 0
    prompt_logprobs: list[PositionLogprobs | None] | None = None


@dataclass(slots=True)
class Generation:
    """All prompts of one HTTP request. Read `pieces` once; the counts are complete when it ends."""

    front: Front
    runs: list[PromptRun] = field(default_factory=list)

    def add(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        keywords: Mapping[str, Any],
        params: SamplingParams,
        *,
        adapter: str | None,
        caller: Caller,
        priority: int,
    ) -> None:
        first = len(self.runs) * params.n
        info, tokenizer = self.front.client.info, self.front.tokenizer
        self.runs.append(
            PromptRun(
                GenerateRequest(
                    request_id=request_id,
                    prompt_token_ids=prompt_token_ids,
                    params=engine_keywords(keywords, params),
                    adapter=adapter,
                    cache_salt=caller.cache_salt,
                    tenant=caller.tenant,
                    weight=caller.weight,
                    priority=priority,
                ),
                [OutputStream(first + i, params, tokenizer, info.eos_token_ids) for i in range(params.n)],
                params.n,
            )
        )

    def pieces(self, shortcut: Shortcut | None = None) -> AsyncGenerator[Piece | PromptRun, None]:
        """A `PromptRun` when its prompt is computed, then the pieces of its samples. Closing it aborts all.

        Pieces that `shortcut` takes are not among them. Raises what the engine's client raises, and an `ApiError` for a
        sample that failed.
        """
        return self._pieces_of(self.runs[0], shortcut) if len(self.runs) == 1 else self._merged()

    def usage(self) -> dict[str, Any]:
        prompt = sum(len(run.request.prompt_token_ids) for run in self.runs)
        completion = sum(stream.num_tokens for run in self.runs for stream in run.streams)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(run.cached_tokens for run in self.runs)},
        }

    async def _pieces_of(
        self, run: PromptRun, shortcut: Shortcut | None = None
    ) -> AsyncGenerator[Piece | PromptRun, None]:
        listener = None if shortcut is None else self._listener(run, shortcut)
        async with aclosing(self.front.client.generate(run.request, listener)) as events:
            async for event in events:
                if isinstance(event, RequestStarted):
                    run.cached_tokens = event.num_cached_tokens
                    run.prompt_logprobs = event.prompt_logprobs
                    yield run
                    continue
                if isinstance(event, RequestEnd):
                    break
                piece = self._push(run, event)
                if piece.text or piece.finish is not None or piece.logprobs:
                    yield piece
                if not run.open_streams:
                    break  # its last stop string may have been found here: the engine need not say that it ends
        if run.open_streams:
            raise EngineStopped("The engine ended the request before it was complete.")

    def _listener(self, run: PromptRun, shortcut: Shortcut) -> Listener:
        ready, take = shortcut.ready, shortcut.take

        def listen(update: SampleUpdate) -> bool:
            if update.finish_reason is not None or not ready():
                return False
            piece = self._push(run, update)
            if piece.text or piece.finish is not None or piece.logprobs:
                take(piece)
            return True

        return listen

    def _push(self, run: PromptRun, update: SampleUpdate) -> Piece:
        piece = run.streams[update.index].push(update)
        if piece.finish is not None:
            run.open_streams -= 1
            if piece.finish.reason in ("abort", "error"):
                raise _failure(piece)
            if update.finish_reason is None:
                self.front.client.end_sample(run.request.request_id, update.index)
        return piece

    async def _merged(self) -> AsyncGenerator[Piece | PromptRun, None]:
        queue: asyncio.Queue[Piece | PromptRun | BaseException | None] = asyncio.Queue(_PIECES_AHEAD)
        tasks = [asyncio.create_task(self._pump(run, queue)) for run in self.runs]
        try:
            running = len(tasks)
            while running:
                item = await queue.get()
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, run: PromptRun, queue: asyncio.Queue[Piece | PromptRun | BaseException | None]) -> None:
        try:
            async with aclosing(self._pieces_of(run)) as pieces:
                async for piece in pieces:
                    await queue.put(piece)
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)


def _failure(piece: Piece) -> Exception:
    finish = piece.finish
    if finish is not None and finish.reason == "error":
        return ApiError(500, f"The output failed: {finish.stop_reason}", code="generation_failed")
    return EngineStopped("The request was ended by the server.")


def texts_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)
