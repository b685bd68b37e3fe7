"""`POST /v1/completions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from looseleaf.engine.prompts import InvalidPrompt
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.server.front import Front
from looseleaf.server.handlers.chunks import ChunkWriter
from looseleaf.server.handlers.generation import Generation, PromptRun, Shortcut
from looseleaf.server.handlers.logprobs import CompletionLogprobs, joined
from looseleaf.server.handlers.responses import GENERATES, json_response
from looseleaf.server.handlers.sampling import sampling_keywords
from looseleaf.server.handlers.sse import DirectBody, direct_body, stream, unless_gone
from looseleaf.server.output_stream import Piece
from looseleaf.server.protocol.completions import MAX_SAMPLES, Completion, CompletionBody
from looseleaf.server.protocol.errors import ApiError


def completions_router(front: Front) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions", responses=GENERATES | {200: GENERATES[200] | {"model": Completion}})
    async def create_completion(body: CompletionBody, request: Request) -> Response:
        answer = CompletionAnswer(front, body)
        await answer.prepare(request)
        if body.stream:
            return await stream(request.receive, answer.chunks(direct_body(request.scope)))
        return json_response(await unless_gone(request.receive, answer.whole()))

    return router


class CompletionAnswer:
    def __init__(self, front: Front, body: CompletionBody) -> None:
        self._front = front
        self._body = body
        self._model, self._adapter = front.served(body.model)
        self._generation = Generation(front)
        self._head: dict[str, Any] = {
            "id": front.new_id("cmpl"),
            "object": "text_completion",
            "created": front.now(),
            "model": self._model,
        }
        self._rates_only = body.max_tokens == 0
        self._logprobs: dict[int, CompletionLogprobs] = {}

    async def prepare(self, request: Request) -> None:
        """Tokenise the prompts and check the parameters. Raises what is wrong with them."""
        body = self._body
        if self._rates_only and not body.echo:
            raise ApiError(400, "max_tokens is 0 but must be at least 1 without echo.", param="max_tokens")
        keywords = sampling_keywords(
            body,
            logprobs=body.logprobs,
            prompt_logprobs=body.logprobs if body.echo else None,
        )
        keywords["max_tokens"] = 1 if self._rates_only else body.max_tokens
        params = SamplingParams.parse(keywords)
        caller = self._front.identify(request)
        for index, token_ids in enumerate(await self._prompts()):
            self._generation.add(
                f"{self._head['id']}-{index}",
                token_ids,
                keywords,
                params,
                adapter=self._adapter,
                caller=caller,
                priority=body.priority,
            )

    async def whole(self) -> dict[str, Any]:
        texts: dict[int, list[str]] = {}
        parts: dict[int, list[dict[str, Any]]] = {}
        ends: dict[int, dict[str, Any]] = {}
        async with aclosing(self._choices()) as choices:
            async for choice in choices:
                index = choice["index"]
                texts.setdefault(index, []).append(choice["text"])
                if choice["logprobs"] is not None:
                    parts.setdefault(index, []).append(choice["logprobs"])
                ends[index] = choice
        wanted = self._body.logprobs is not None
        return self._head | {
            "choices": [
                ends[index]
                | {"text": "".join(texts[index]), "logprobs": joined(parts.get(index, [])) if wanted else None}
                for index in sorted(ends)
            ],
            "usage": self._usage(),
        }

    async def chunks(self, body: DirectBody | None) -> AsyncGenerator[bytes, None]:
        """What `body` does not take, in order."""
        options = self._body.stream_options
        include_usage = options is not None and options.include_usage
        writer = ChunkWriter(
            self._head,
            '"text":',
            ',"logprobs":null,"finish_reason":null,"stop_reason":null}',
            include_usage=include_usage,
        )

        def write(piece: Piece) -> None:
            assert body is not None
            if piece.finish is None and piece.logprobs is None:
                body.write(writer.text(piece.index, piece.text))
            else:
                body.write(writer.choice(self._piece(piece)))

        shortcut = None if body is None or self._rates_only else Shortcut(body.ready, write)
        async with aclosing(self._choices(shortcut)) as choices:
            async for choice in choices:
                if choice["finish_reason"] is None and choice["logprobs"] is None:
                    if choice["text"]:
                        yield writer.text(choice["index"], choice["text"])
                else:
                    yield writer.choice(choice)
        if include_usage:
            yield writer.usage(self._usage())

    async def _choices(self, shortcut: Shortcut | None = None) -> AsyncGenerator[dict[str, Any], None]:
        """The pieces as choices, in the wire's shape."""
        async with aclosing(self._generation.pieces(shortcut)) as pieces:
            async for piece in pieces:
                if isinstance(piece, PromptRun):
                    if self._body.echo:
                        for number, _ in enumerate(piece.streams):
                            yield self._echoed(piece, number)
                elif self._rates_only:
                    yield _choice(piece.index, "", None, "length", None)
                else:
                    yield self._piece(piece)

    def _piece(self, piece: Piece) -> dict[str, Any]:
        rated = None
        if piece.logprobs is not None:
            rated = self._rating(piece.index).of(piece.logprobs)
        finish = piece.finish
        if finish is None:
            return _choice(piece.index, piece.text, rated, None, None)
        return _choice(piece.index, piece.text, rated, finish.reason, finish.stop_reason)

    def _echoed(self, run: PromptRun, number: int) -> dict[str, Any]:
        index = self._generation.runs.index(run) * self._body.n + number
        token_ids = run.request.prompt_token_ids
        rated = None
        if run.prompt_logprobs is not None:
            rating = self._rating(index)
            later = [position for position in run.prompt_logprobs if position is not None]
            rated = joined([rating.first_token(token_ids[0]), rating.of(later)])
        return _choice(index, self._prompt_text(index // self._body.n, token_ids), rated, None, None)

    def _rating(self, index: int) -> CompletionLogprobs:
        if index not in self._logprobs:
            self._logprobs[index] = CompletionLogprobs(self._front)
        return self._logprobs[index]

    def _usage(self) -> dict[str, Any]:
        usage = self._generation.usage()
        if self._rates_only:
            usage |= {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}
        return usage

    def _prompt_text(self, index: int, token_ids: list[int]) -> str:
        prompt = self._body.prompt
        if isinstance(prompt, str):
            return prompt
        given = prompt[index]
        return given if isinstance(given, str) else self._front.tokenizer.decode(token_ids)

    async def _prompts(self) -> list[list[int]]:
        prompt = self._body.prompt
        listed: list[Any] = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else list(prompt)
        if len(listed) * (self._body.best_of or self._body.n) > MAX_SAMPLES:
            raise ApiError(
                400,
                f"{len(listed)} prompts of {self._body.best_of or self._body.n} samples are more than {MAX_SAMPLES}.",
                param="prompt",
                code="invalid_value",
            )
        vocab_size = self._front.client.info.vocab_size
        encoded = []
        for given in listed:
            self._front.check_fits(given)
            if isinstance(given, str):
                encode = partial(self._front.tokenizer.encode, given, self._body.add_special_tokens)
                given = await self._front.in_background(len(given), encode)
            if not given:
                raise InvalidPrompt("The prompt has no tokens.", hint="Pass at least one token.")
            if (largest := max(given)) >= vocab_size:
                raise InvalidPrompt(f"The prompt has the token {largest}, outside the vocabulary of {vocab_size}.")
            encoded.append(given)
        return encoded


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None, stop_reason: int | str | None
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
    }
