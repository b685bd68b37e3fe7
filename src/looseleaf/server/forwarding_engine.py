"""What engine clients that stand in front of another have in common: all that they do not change is the other's."""

from __future__ import annotations

from looseleaf.server.interface import ClientState, EngineClient, EngineStats, ModelInfo


class ForwardingEngine:
    """An `EngineClient` but for `generate`."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine

    @property
    def state(self) -> ClientState:
        return self._engine.state

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    @property
    def num_restarts(self) -> int:
        return self._engine.num_restarts

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def end_sample(self, request_id: str, index: int) -> None:
        self._engine.end_sample(request_id, index)
