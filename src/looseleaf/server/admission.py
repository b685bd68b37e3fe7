"""The door of the server: who may come in, how much they may bring, how long they may stay.

ASGI middleware around the application. What is refused here costs neither parsing nor tokens.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from looseleaf.server.handlers.responses import error_response
from looseleaf.server.handlers.sse import DONE, event
from looseleaf.server.identity import NOBODY, KeyRing, Tenant
from looseleaf.server.protocol.errors import ApiError
from looseleaf.server.quotas import Quotas
from looseleaf.server.request_body import BodyTooLarge, lingering, read_body
from looseleaf.server.settings import AdmissionSettings, Caller

OPEN_PATHS = frozenset({"/health", "/health/ready", "/version", "/metrics"})
"""Need no key, and are answered while the server stops: nothing there is anybody's."""
LIMITED_PATHS = frozenset({"/v1/completions", "/v1/chat/completions"})
"""Count against a tenant's limits."""
TIMEOUT_HEADER = "x-request-timeout"
"""Seconds after which the client wants no answer any more."""
_CALLER = "looseleaf.caller"
_LAST_WORDS_SECONDS = 2.0


def identify(request: Request) -> Caller:
    """Whom `Admission` has let in."""
    caller: Caller = request.scope[_CALLER]
    return caller


class Admission:
    def __init__(self, app: ASGIApp, settings: AdmissionSettings, ring: KeyRing, quotas: Quotas) -> None:
        self._app = app
        self._settings = settings
        self._ring = ring
        self._quotas = quotas
        self._inside: set[asyncio.Timeout] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed = False
        self._ended = False

    @property
    def num_inside(self) -> int:
        """Requests in progress."""
        return len(self._inside)

    def close(self) -> None:
        """Let nobody in any more: 503."""
        self._closed = True

    async def wait_until_empty(self) -> None:
        await self._empty.wait()

    def end_all(self) -> None:
        """End what is in progress: 503, or in a stream an error event."""
        self._ended = True
        for limit in self._inside:
            if not limit.expired():
                limit.reschedule(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            scope[_CALLER] = Caller()
            await self._app(scope, receive, send)
            return
        try:
            tenant, seconds = self._check(scope)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        try:
            await self._serve(scope, receive, send, seconds)
        finally:
            if tenant is not None:
                self._quotas.leave(tenant)

    def _check(self, scope: Scope) -> tuple[Tenant | None, float | None]:
        """The tenant whose request is counted, and how long it may take. Raises an `ApiError`."""
        if self._closed:
            raise _stopping()
        headers = dict(scope["headers"])
        tenant = self._tenant(headers.get(b"authorization", b""))
        seconds = self._seconds(headers.get(TIMEOUT_HEADER.encode()))
        scope[_CALLER] = Caller(tenant=tenant.name, weight=tenant.weight, cache_salt=self._ring.salt_of(tenant))
        if scope["path"] not in LIMITED_PATHS or scope["method"] != "POST":
            return None, seconds
        if (over := self._quotas.enter(tenant)) is not None:
            raise ApiError(
                429,
                over.message,
                code="rate_limit_exceeded",
                hint=f"Try again in {over.retry_after} s.",
                headers={"Retry-After": str(over.retry_after)},
            )
        return tenant, seconds

    def _tenant(self, authorization: bytes) -> Tenant:
        if not self._ring.required:
            return NOBODY
        scheme, _, key = authorization.decode("latin-1").partition(" ")
        if scheme.lower() == "bearer" and (tenant := self._ring.tenant_of(key.strip())) is not None:
            return tenant
        raise ApiError(
            401,
            "This API key is not known." if authorization else "An API key is needed.",
            code="invalid_api_key",
            hint="" if authorization else "Send it as: Authorization: Bearer KEY.",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _seconds(self, asked: bytes | None) -> float | None:
        most = self._settings.request_timeout
        if asked is None:
            return most
        try:
            seconds = float(asked)
        except ValueError:
            seconds = math.nan
        if not seconds > 0:
            raise ApiError(400, f"The header {TIMEOUT_HEADER} must be seconds above 0.", code="invalid_value")
        return seconds if most is None else min(seconds, most)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, seconds: float | None) -> None:
        answer = _Answer(send)
        try:
            async with asyncio.timeout(seconds) as limit:
                self._inside.add(limit)
                self._empty.clear()
                try:
                    body = await read_body(
                        scope, receive, limit=self._settings.max_body_bytes, seconds=self._settings.body_timeout
                    )
                    await self._app(scope, body, answer.send)
                finally:
                    self._inside.discard(limit)
                    if not self._inside:
                        self._empty.set()
        except TimeoutError:
            if not limit.expired():
                raise
            with suppress(TimeoutError):  # nobody reads: the connection is closed under it
                async with asyncio.timeout(_LAST_WORDS_SECONDS):
                    await answer.end(scope, receive, _stopping() if self._ended else _too_late(seconds))
        except BodyTooLarge as error:
            await error_response(error)(scope, receive, lingering(receive, send))
        except ApiError as error:
            await error_response(error)(scope, receive, send)


class _Answer:
    """What has been sent of an answer, so that it can be ended early."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._started = self._over = self._streams = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            self._streams = any(
                name == b"content-type" and value.startswith(b"text/event-stream") for name, value in message["headers"]
            )
        elif not message.get("more_body", False):
            self._over = True
        await self._send(message)

    async def end(self, scope: Scope, receive: Receive, error: ApiError) -> None:
        if not self._started:
            await error_response(error)(scope, receive, self._send)
        elif not self._over:
            body = event(error.body()) + DONE if self._streams else b""
            await self._send({"type": "http.response.body", "body": body, "more_body": False})


def _stopping() -> ApiError:
    return ApiError(
        503, "The server stops.", code="server_stopping", headers={"Connection": "close", "Retry-After": "1"}
    )


def _too_late(seconds: float | None) -> ApiError:
    return ApiError(504, f"The answer was not complete within {seconds:g} s.", code="request_timeout")
