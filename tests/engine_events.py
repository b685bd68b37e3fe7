"""Requests to an engine as the server's front makes them, and their events put together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from looseleaf.server.interface import EngineClient, Event, GenerateRequest, RequestEnd, RequestStarted, SampleUpdate


@dataclass
class Sample:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish: tuple[Any, Any] | None = None


@dataclass
class Collected:
    """A request's events, put together; and that they came in their order."""

    started: RequestStarted | None = None
    samples: dict[int, Sample] = field(default_factory=lambda: defaultdict(Sample))
    ended: bool = False

    def take(self, event: Event) -> None:
        assert not self.ended
        if isinstance(event, RequestStarted):
            assert self.started is None
            self.started = event
        elif isinstance(event, SampleUpdate):
            assert self.started is not None
            sample = self.samples[event.index]
            assert sample.finish is None
            sample.token_ids += event.token_ids
            sample.logprobs += event.logprobs or []
            if event.finish_reason is not None:
                sample.finish = event.finish_reason, event.stop_reason
        else:
            assert isinstance(event, RequestEnd)
            self.ended = True


async def collect(engine: EngineClient, request: GenerateRequest) -> Collected:
    collected = Collected()
    async for event in engine.generate(request):
        collected.take(event)
    assert collected.ended
    return collected


def request(request_id: str, prompt: list[int] | None = None, **params: Any) -> GenerateRequest:
    defaults = {"detokenize": False, "ignore_eos": True, "max_tokens": 20, "seed": 7}
    return GenerateRequest(
        request_id=request_id, prompt_token_ids=prompt or [5, 6, 7, 8, 9], params={**defaults, **params}
    )
