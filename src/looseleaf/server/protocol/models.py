"""`/v1/models`, `/version` and `/health`."""

from __future__ import annotations

from typing import Literal

from looseleaf.server.protocol.base import Answer


class ModelCard(Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    parent: str | None
    """For an adapter: the model that it changes."""
    max_model_len: int


class ModelList(Answer):
    object: Literal["list"]
    data: list[ModelCard]


class Version(Answer):
    version: str


class Health(Answer):
    status: str
    """Of the engine: starting, ready, restarting or stopped."""
