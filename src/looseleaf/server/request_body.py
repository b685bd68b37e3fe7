"""A request's body, taken in before anything else is done: no more of it than allowed, and not for ever."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive, Scope, Send

from looseleaf.server.protocol.errors import ApiError

_LINGER_SECONDS = 2.0


class BodyTooLarge(ApiError):
    def __init__(self, limit: int) -> None:
        super().__init__(
            413,
            f"The body is longer than the {limit} bytes that this server takes.",
            code="body_too_large",
            headers={"Connection": "close"},
        )


class BodyTooSlow(ApiError):
    def __init__(self, seconds: float) -> None:
        super().__init__(
            408,
            f"The body did not arrive within {seconds:g} s.",
            code="body_timeout",
            headers={"Connection": "close"},
        )


async def read_body(scope: Scope, receive: Receive, *, limit: int, seconds: float) -> Receive:
    """What the application then receives: the body at once. Raises an `ApiError`."""
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if not length.isdigit() or len(length) > 18 or int(length) > limit:
        raise BodyTooLarge(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return _given(message, receive)
                body += message.get("body", b"")
                if len(body) > limit:
                    raise BodyTooLarge(limit)
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        raise BodyTooSlow(seconds) from None
    return _given({"type": "http.request", "body": bytes(body), "more_body": False}, receive)


def _given(first: Message, rest: Receive) -> Receive:
    messages = [first]

    async def receive() -> Message:
        return messages.pop() if messages else await rest()

    return receive


def lingering(receive: Receive, send: Send) -> Send:
    """Ends a response only after the rest of the body was read and dropped, or a moment has passed.

    A client that is still sending would lose the answer if the connection were closed under it.
    """

    async def dropped() -> None:
        while True:
            message = await receive()
            if message["type"] != "http.request" or not message.get("more_body", False):
                return

    async def send_then_linger(message: Message) -> None:
        if message["type"] != "http.response.body" or message.get("more_body", False):
            await send(message)
            return
        await send({**message, "more_body": True})
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                await dropped()
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return send_then_linger
