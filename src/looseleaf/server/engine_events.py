"""From an engine's steps to the events that the front is told."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from looseleaf.engine.engine import Engine
from looseleaf.engine.outputs import CompletionOutput, Logprob
from looseleaf.engine.running_request import SampleDelta
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.scheduler.interface import StepPlan
from looseleaf.server.interface import Event, PositionLogprobs, RequestEnd, RequestStarted, SampleUpdate, TokenLogprob


@dataclass(slots=True)
class _Open:
    """A request in the engine."""

    arrival: float
    whole: bool
    """Nothing of it is shown before its end."""
    admitted: float | None = None
    num_cached: int = 0
    num_preemptions: int = 0
    started: bool = False


class EventMaker:
    """Follows the requests of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[str, _Open] = {}

    def added(self, request_id: str, params: SamplingParams) -> None:
        whole = params.beam_width is not None or params.num_samples > params.n
        self._open[request_id] = _Open(time.perf_counter(), whole)

    def aborted(self, request_id: str) -> None:
        self._open.pop(request_id, None)

    def planned(self, plan: StepPlan) -> None:
        """Take note of who enters memory and who leaves it."""
        for sequence in plan.admitted:
            each = self._open.get(sequence.request.request_id)
            if each is not None and each.admitted is None:
                each.admitted = time.perf_counter()
                each.num_cached = sequence.request.num_cached_prompt_tokens or 0
        for sequence in plan.preempted:
            if (each := self._open.get(sequence.request.request_id)) is not None:
                each.num_preemptions += 1

    def events(self, deltas: Iterable[SampleDelta]) -> list[Event]:
        """In the order in which they are to be told."""
        events: list[Event] = []
        for delta in deltas:
            each = self._open.get(delta.request_id)
            if each is None:  # ended in the meantime
                continue
            result = delta.request_output
            if not each.started and (result is not None or not each.whole):
                events.append(self._started(delta, each))
            if not each.whole:
                logprobs = None if delta.logprobs is None else [_position(entries) for entries in delta.logprobs]
                events.append(
                    SampleUpdate(
                        delta.request_id,
                        delta.index,
                        delta.token_ids,
                        delta.finish_reason,
                        delta.stop_reason,
                        logprobs,
                    )
                )
            elif result is not None:
                events += (_whole(delta.request_id, output) for output in result.outputs)
            if result is not None:
                events.append(RequestEnd(delta.request_id, each.num_preemptions))
                del self._open[delta.request_id]
        return events

    def _started(self, delta: SampleDelta, each: _Open) -> RequestStarted:
        each.started = True
        output = delta.request_output
        prompt = self._engine.prompt_logprobs(delta.request_id) if output is None else output.prompt_logprobs
        now = time.perf_counter()
        admitted = now if each.admitted is None else each.admitted
        return RequestStarted(
            delta.request_id,
            each.num_cached,
            None if prompt is None else [None if entries is None else _position(entries) for entries in prompt],
            admitted - each.arrival,
            now - admitted,
        )


def _whole(request_id: str, output: CompletionOutput) -> SampleUpdate:
    logprobs = None if output.logprobs is None else [_position(entries) for entries in output.logprobs]
    return SampleUpdate(request_id, output.index, output.token_ids, output.finish_reason, output.stop_reason, logprobs)


def _position(entries: dict[int, Logprob]) -> PositionLogprobs:
    return [TokenLogprob(token_id, each.logprob, each.rank) for token_id, each in entries.items()]
