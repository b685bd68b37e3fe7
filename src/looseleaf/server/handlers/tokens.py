"""`POST /tokenize` and `/detokenize`."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.responses import Response

from looseleaf.server.front import Front
from looseleaf.server.handlers.responses import ANSWERS, json_response
from looseleaf.server.protocol.errors import ApiError
from looseleaf.server.protocol.tokenize import DetokenizeAnswer, DetokenizeBody, TokenizeAnswer, TokenizeBody


def tokens_router(front: Front) -> APIRouter:
    router = APIRouter(responses=ANSWERS)

    @router.post("/tokenize", response_model=TokenizeAnswer)
    async def tokenize(body: TokenizeBody) -> Response:
        front.served(body.model)
        token_ids = await _token_ids(front, body)
        return json_response(
            {
                "count": len(token_ids),
                "max_model_len": front.client.info.max_model_len,
                "tokens": token_ids,
                "token_strs": [front.token_text(token) for token in token_ids] if body.return_token_strs else None,
            }
        )

    @router.post("/detokenize", response_model=DetokenizeAnswer)
    async def detokenize(body: DetokenizeBody) -> Response:
        front.served(body.model)
        vocab_size = front.client.info.vocab_size
        if body.tokens and (largest := max(body.tokens)) >= vocab_size:
            raise ApiError(
                400, f"Token {largest} is outside the vocabulary of {vocab_size}.", param="tokens", code="invalid_value"
            )
        decode = front.tokenizer.decode
        text = await front.in_background(len(body.tokens), lambda: decode(body.tokens, skip_special_tokens=False))
        return json_response({"prompt": text})

    return router


async def _token_ids(front: Front, body: TokenizeBody) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "Give either prompt or messages.", param="prompt", code="invalid_value")
    if body.prompt is not None:
        text = body.prompt
        framed = body.add_special_tokens is not False
        return await front.in_background(len(text), lambda: front.tokenizer.encode(text, framed))
    messages = body.messages or []
    if body.add_special_tokens:
        raise ApiError(
            400,
            "Messages bring their special tokens along: the chat template writes them.",
            param="add_special_tokens",
            code="invalid_value",
        )
    return await asyncio.to_thread(
        lambda: front.chat_prompts.encode(
            messages,
            body.tools or (),
            add_generation_prompt=body.add_generation_prompt,
            variables=body.chat_template_kwargs,
        ),
    )
