"""What the front is told when it starts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from starlette.requests import Request


@dataclass(frozen=True, slots=True)
class FrontSettings:
    served_model_names: tuple[str, ...]
    """At least one; answers carry the one that was asked for."""
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix time that `/v1/models` gives."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, as far as the engine must know. A client chooses none of it."""

    tenant: str = ""
    weight: float = 1.0
    cache_salt: str = ""


def anonymous(_request: Request) -> Caller:
    """Where nobody says who he is, all are one."""
    return Caller()
