"""By which names the server may be asked. Without keys, on this machine alone, a web page must not get at it.

Any page that a browser on this machine shows can send requests to 127.0.0.1, and read the answers too once its own
name is made to mean 127.0.0.1 (DNS rebinding). Its requests carry that name as `Host`, or as `Origin`.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from looseleaf.server.bind_address import is_loopback
from looseleaf.server.handlers.responses import error_response
from looseleaf.server.protocol.errors import ApiError

ANY_HOST = "*"


class AllowedHosts:
    """ASGI middleware: refuses (403) what is sent to, or by a page of, another host than this machine or `names`."""

    def __init__(self, app: ASGIApp, names: Iterable[str] = ()) -> None:
        self._app = app
        self._names = {name.lower().strip("[]") for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._refusal(scope) if scope["type"] == "http" else None
        await (self._app if error is None else error_response(error))(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        for header, value in scope["headers"]:
            if header == b"host":
                name = host_of("//" + value.decode("latin-1"))
            elif header == b"origin":
                name = host_of(value.decode("latin-1"))
            else:
                continue
            if not (is_loopback(name) or name.endswith(".localhost") or name in self._names):
                return ApiError(
                    403,
                    f"The header {header.decode()} names {name[:100]!r}, and this server is for its own machine only.",
                    code="host_not_allowed",
                    hint="Start it with --allowed-host, or with keys.",
                )
        return None


def host_of(url: str) -> str:
    """Its host in lower case, without port; "" where there is none, as in "null"."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
