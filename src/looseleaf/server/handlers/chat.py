"""`POST /v1/chat/completions`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.server.chat_prompt import content_text
from looseleaf.server.front import Front
from looseleaf.server.handlers.chat_tools import ToolUse
from looseleaf.server.handlers.chunks import ChunkWriter
from looseleaf.server.handlers.generation import Generation, PromptRun, Shortcut
from looseleaf.server.handlers.logprobs import chat_logprobs
from looseleaf.server.handlers.responses import GENERATES, json_response
from looseleaf.server.handlers.sampling import sampling_keywords
from looseleaf.server.handlers.sse import DirectBody, direct_body, stream, unless_gone
from looseleaf.server.output_stream import Piece
from looseleaf.server.protocol.chat import ChatBody, ChatCompletion, JsonObjectFormat, SchemaFormat
from looseleaf.server.protocol.errors import ApiError
from looseleaf.server.tool_calls import Call, CallReader


def chat_router(front: Front) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions", responses=GENERATES | {200: GENERATES[200] | {"model": ChatCompletion}})
    async def create_chat_completion(body: ChatBody, request: Request) -> Response:
        answer = ChatAnswer(front, body)
        await answer.prepare(request)
        if body.stream:
            return await stream(request.receive, answer.chunks(direct_body(request.scope)))
        return json_response(await unless_gone(request.receive, answer.whole()))

    return router


class ChatAnswer:
    def __init__(self, front: Front, body: ChatBody) -> None:
        self._front = front
        self._body = body
        self._model, self._adapter = front.served(body.model)
        self._tools = ToolUse(body)
        self._generation = Generation(front)
        self._head: dict[str, Any] = {
            "id": front.new_id("chatcmpl"),
            "object": "chat.completion",
            "created": front.now(),
            "model": self._model,
        }

    async def prepare(self, request: Request) -> None:
        """Make the prompt and check the parameters. Raises what is wrong with them."""
        body = self._body
        keywords = sampling_keywords(body, logprobs=self._num_logprobs(), structured=self._structured())
        keywords["max_tokens"] = self._max_tokens()
        params = SamplingParams.parse(keywords)
        self._front.check_fits("".join(content_text(message.content) or "" for message in body.messages))
        # In a thread whatever its size: a model's template is a program, and may take its time.
        token_ids = await asyncio.to_thread(
            lambda: self._front.chat_prompts.encode(
                body.messages, self._tools.shown, variables=body.chat_template_kwargs
            ),
        )
        if not token_ids:
            raise ApiError(400, "The messages make an empty prompt.", param="messages", code="invalid_prompt")
        self._generation.add(
            self._head["id"],
            token_ids,
            keywords,
            params,
            adapter=self._adapter,
            caller=self._front.identify(request),
            priority=body.priority,
        )

    async def whole(self) -> dict[str, Any]:
        choices = [_WholeChoice(index, self._tools.reader()) for index in range(self._body.n)]
        async with aclosing(self._generation.pieces()) as pieces:
            async for piece in pieces:
                if isinstance(piece, Piece):
                    choices[piece.index].add(piece, self._logprobs(piece))
        return self._head | {
            "choices": [choice.answer(self._tools) for choice in choices],
            "usage": self._generation.usage(),
        }

    async def chunks(self, body: DirectBody | None) -> AsyncGenerator[bytes, None]:
        """What `body` does not take, in order."""
        options = self._body.stream_options
        include_usage = options is not None and options.include_usage
        head = self._head | {"object": "chat.completion.chunk"}
        closing = '},"logprobs":null,"finish_reason":null}'
        writer = ChunkWriter(head, '"delta":{"content":', closing, include_usage=include_usage)
        readers = [self._tools.reader() for _ in range(self._body.n)]
        num_calls = [0] * self._body.n

        def chunk(piece: Piece) -> bytes:
            reader = readers[piece.index]
            if reader is None and piece.finish is None and piece.logprobs is None:
                return writer.text(piece.index, piece.text)
            parts: list[str | Call] = [piece.text] if piece.text else []
            if reader is not None:
                parts = reader.push(piece.text) + (reader.finish() if piece.finish is not None else [])
            return self._chunk(writer, piece, parts, num_calls)

        shortcut = None if body is None else Shortcut(body.ready, lambda piece: body.write(chunk(piece)))
        async with aclosing(self._generation.pieces(shortcut)) as pieces:
            async for piece in pieces:
                if isinstance(piece, PromptRun):
                    role = {"role": "assistant", "content": ""}
                    yield b"".join(writer.choice(_delta(i, role)) for i in range(self._body.n))
                else:
                    yield chunk(piece)
        if include_usage:
            yield writer.usage(self._generation.usage())

    def _chunk(self, writer: ChunkWriter, piece: Piece, parts: list[str | Call], num_calls: list[int]) -> bytes:
        """The events of one piece; logprobs go with the first, the end with one of its own."""
        index = piece.index
        deltas: list[dict[str, Any]] = []
        for part in parts:
            if isinstance(part, str):
                deltas.append({"content": part})
            else:
                deltas.append({"tool_calls": [{"index": num_calls[index]} | _call(part)]})
                num_calls[index] += 1
        logprobs = self._logprobs(piece)
        if logprobs is not None and not deltas:
            deltas.append({"content": ""})
        written = [writer.choice(_delta(index, delta, logprobs if i == 0 else None)) for i, delta in enumerate(deltas)]
        if piece.finish is not None:
            reason = self._tools.finish_reason(piece.finish.reason, num_calls[index])
            written.append(writer.choice(_delta(index, {}, None, reason)))
        return b"".join(written)

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        return chat_logprobs(self._front, piece.logprobs, self._body.top_logprobs or 0)

    def _num_logprobs(self) -> int | None:
        body = self._body
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs", code="invalid_value")
        return (body.top_logprobs or 0) if body.logprobs else None

    def _max_tokens(self) -> int | None:
        body = self._body
        if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
            raise ApiError(
                400,
                f"max_tokens is {body.max_tokens}, but max_completion_tokens is {body.max_completion_tokens}.",
                param="max_tokens",
                code="invalid_value",
            )
        return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens

    def _structured(self) -> dict[str, Any] | None:
        """What the output must be, by `response_format` or by a forced tool call."""
        wanted = self._body.response_format
        asked: list[dict[str, Any]] = []
        if isinstance(wanted, JsonObjectFormat):
            asked.append({"json_object": True})
        elif isinstance(wanted, SchemaFormat):
            # Without a schema any JSON value will do.
            asked.append({"json_schema": wanted.json_schema.schema_ or {}})
        if (forced := self._tools.structured()) is not None:
            asked.append(forced)
        if len(asked) + (self._body.structured_outputs is not None) > 1:
            raise ApiError(
                400,
                "Only one of response_format, structured_outputs and a forced tool_choice can say what the output is.",
                param="response_format",
                code="invalid_value",
            )
        if asked and forced is None and self._tools.shown:
            raise ApiError(
                400,
                "response_format leaves no room for tool calls.",
                param="response_format",
                code="unsupported_parameter",
                hint="Leave the tools out, or set tool_choice to 'required'.",
            )
        return asked[0] if asked else None


class _WholeChoice:
    def __init__(self, index: int, reader: CallReader | None) -> None:
        self._index = index
        self._reader = reader
        self._texts: list[str] = []
        self._calls: list[Call] = []
        self._logprobs: dict[str, Any] | None = None
        self._last: Piece | None = None

    def add(self, piece: Piece, logprobs: dict[str, Any] | None) -> None:
        if self._reader is None:
            self._texts.append(piece.text)
        else:
            self._take(self._reader.push(piece.text))
            if piece.finish is not None:
                self._take(self._reader.finish())
        if logprobs is not None:
            if self._logprobs is None:
                self._logprobs = logprobs
            else:
                self._logprobs["content"] += logprobs["content"]
        self._last = piece

    def answer(self, tools: ToolUse) -> dict[str, Any]:
        finish = self._last.finish if self._last is not None else None
        assert finish is not None  # pieces end with one for each sample
        text = "".join(self._texts)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self._calls:
            message |= {"content": text.strip() or None, "tool_calls": [_call(call) for call in self._calls]}
        return {
            "index": self._index,
            "message": message,
            "logprobs": self._logprobs,
            "finish_reason": tools.finish_reason(finish.reason, len(self._calls)),
            "stop_reason": finish.stop_reason,
        }

    def _take(self, parts: list[str | Call]) -> None:
        for part in parts:
            if isinstance(part, str):
                self._texts.append(part)
            else:
                self._calls.append(part)


def _delta(
    index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
