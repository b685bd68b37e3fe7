"""What the server is and how it does: models, version, health."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

import looseleaf
from looseleaf.server.front import Front
from looseleaf.server.handlers.responses import ANSWERS, json_response
from looseleaf.server.protocol.errors import model_not_found
from looseleaf.server.protocol.models import Health, ModelCard, ModelList, Version


def about_router(front: Front) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models", response_model=ModelList, responses=ANSWERS)
    async def list_models() -> Response:
        return json_response({"object": "list", "data": list(_cards(front).values())})

    # A path, because names may contain slashes.
    @router.get("/v1/models/{model:path}", response_model=ModelCard, responses=ANSWERS)
    async def retrieve_model(model: str) -> Response:
        cards = _cards(front)
        if model not in cards:
            raise model_not_found(model, list(cards))
        return json_response(cards[model])

    @router.get("/version", response_model=Version, responses=ANSWERS)
    async def version() -> Response:
        return json_response({"version": looseleaf.__version__})

    @router.get("/health", response_model=Health, responses=ANSWERS)
    async def live() -> Response:
        """The front answers. The engine may be starting."""
        return json_response({"status": front.client.state})

    @router.get("/health/ready", response_model=Health, responses=ANSWERS | {503: {"model": Health}})
    async def ready() -> Response:
        """503 unless the engine takes requests."""
        state = front.client.state
        return json_response({"status": state}, 200 if state == "ready" else 503)

    return router


def _cards(front: Front) -> dict[str, dict[str, Any]]:
    names, info = front.settings.served_model_names, front.client.info
    parents: dict[str, str | None] = dict.fromkeys(names)
    parents |= {adapter: names[0] for adapter in info.adapters if adapter not in parents}
    return {
        name: {
            "id": name,
            "object": "model",
            "created": front.settings.created,
            "owned_by": "looseleaf",
            "parent": parent,
            "max_model_len": info.max_model_len,
        }
        for name, parent in parents.items()
    }
