"""The HTTP application: endpoints, and errors as OpenAI error objects."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

import looseleaf
from looseleaf.errors import LooseleafError
from looseleaf.models.tokenizer import Tokenizer
from looseleaf.server.front import Front
from looseleaf.server.handlers.about import about_router
from looseleaf.server.handlers.chat import chat_router
from looseleaf.server.handlers.completions import completions_router
from looseleaf.server.handlers.responses import error_response
from looseleaf.server.handlers.sse import ClientGone
from looseleaf.server.handlers.tokens import tokens_router
from looseleaf.server.interface import EngineClient
from looseleaf.server.protocol.errors import ApiError, api_error, validation_error
from looseleaf.server.settings import Caller, FrontSettings, anonymous

logger = logging.getLogger("looseleaf.server")


def create_app(
    client: EngineClient,
    tokenizer: Tokenizer,
    settings: FrontSettings,
    *,
    identify: Callable[[Request], Caller] = anonymous,
) -> FastAPI:
    """The application for an engine that has been started; its tokenizer is the front's own copy.

    `identify`: who sends a request; what it raises (an `ApiError`) is the answer.
    """
    app = FastAPI(
        title="Looseleaf",
        version=looseleaf.__version__,
        description="OpenAI's protocol, with vLLM's extensions where their meaning is the same.",
        docs_url=None,
        redoc_url=None,
    )
    front = app.state.front = Front(client, tokenizer, settings, identify)
    for router in (completions_router, chat_router, tokens_router, about_router):
        app.include_router(router(front))
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return app


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    dependant = getattr(request.scope.get("route"), "dependant", None)
    kinds = [parameter.field_info.annotation for parameter in dependant.body_params] if dependant is not None else []
    names = [name for kind in kinds for name in getattr(kind, "model_fields", ())]
    return error_response(validation_error(error.errors(), names))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        message = f"There is no {request.url.path[:200]} here."
    elif error.status_code == 405:
        message = f"{request.url.path} does not take {request.method}."
    elif error.status_code == 400:
        message = "The body is no valid JSON."  # all that is raised before a body is validated
    else:
        message = str(error.detail)
    return error_response(ApiError(error.status_code, message, headers=dict(error.headers or {})))


async def _typed(request: Request, error: Exception) -> Response:
    told = api_error(error)
    if told.status >= 500 and not isinstance(error, LooseleafError):  # what is typed has been logged where it arose
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(told)


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


_HANDLERS = {
    RequestValidationError: _invalid,
    HTTPException: _http,
    LooseleafError: _typed,
    ClientGone: _gone,
    Exception: _typed,
}
