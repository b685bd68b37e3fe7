"""An `EngineClient` whose engine runs in a thread of the same process, for tests of the front."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from looseleaf.engine.engine import Engine
from looseleaf.engine.outputs import Logprob, RequestOutput
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.engine.running_request import SampleDelta
from looseleaf.errors import LooseleafError
from looseleaf.server.interface import (
    ClientState,
    EngineStats,
    Event,
    GenerateRequest,
    Listener,
    ModelInfo,
    PositionLogprobs,
    RequestEnd,
    RequestRefusedError,
    RequestStarted,
    SampleUpdate,
    TokenLogprob,
)


class LocalClient:
    """Like the real one, in one process and without restarts."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.state: ClientState = "ready"
        self.num_restarts = 0
        self.ended_samples: list[tuple[str, int]] = []
        self.requests: list[GenerateRequest] = []
        self._started: set[str] = set()
        self._commands: queue.Queue[Callable[[], Any] | None] = queue.Queue()
        self._sinks: dict[str, Callable[[Any], None]] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def info(self) -> ModelInfo:
        engine = self.engine
        return ModelInfo(
            vocab_size=engine.vocab_size,
            eos_token_ids=list(engine.eos_token_ids),
            max_model_len=engine.pool.max_model_len,
            largest_request=engine.pool.max_model_len,
            block_size=engine.pool.block_size,
            num_blocks=engine.pool.num_blocks,
            max_num_seqs=engine.config.max_num_seqs,
            adapters=list(engine.config.lora),
        )

    def stats(self) -> EngineStats:
        return EngineStats(num_running=len(self._sinks))

    def end_sample(self, request_id: str, index: int) -> None:
        self.ended_samples.append((request_id, index))
        self._commands.put(lambda: self._report(self.engine.end_sample(request_id, index)))

    async def generate(self, request: GenerateRequest, listener: Listener | None = None) -> AsyncGenerator[Event, None]:
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self.requests.append(request)
        waiting = False

        def hear(event: Event | Exception) -> None:
            if listener is not None and waiting and events.empty() and isinstance(event, SampleUpdate):
                try:
                    if listener(event):
                        return
                except Exception as error:
                    event = error
            events.put_nowait(event)

        self._commands.put(lambda: self._add(request, lambda event: loop.call_soon_threadsafe(hear, event)))
        try:
            while True:
                waiting = True
                event = await events.get()
                waiting = False
                if isinstance(event, Exception):
                    raise event
                yield event
                if isinstance(event, RequestEnd):
                    return
        finally:
            self._commands.put(lambda: self._abort(request.request_id))

    def in_flight(self) -> int:
        """Requests in the engine, asked in its own thread."""
        answer: queue.Queue[int] = queue.Queue()
        self._commands.put(lambda: answer.put(len(self._sinks)))
        return answer.get(timeout=10)

    def close(self) -> None:
        self._commands.put(None)
        self._thread.join(10)

    def _run(self) -> None:
        while True:
            try:
                while (command := self._commands.get(block=not self._sinks)) is not None:
                    command()
                return
            except queue.Empty:
                self._report(self.engine.step())

    def _add(self, request: GenerateRequest, sink: Callable[[Any], None]) -> None:
        try:
            self.engine.add_request(
                TokenPrompt(request.prompt_token_ids, None),
                request.params,
                adapter=request.adapter,
                request_id=request.request_id,
                cache_salt=request.cache_salt,
            )
        except LooseleafError as error:
            details = {name: getattr(error, name) for name in ("name", "needed", "limit") if hasattr(error, name)}
            sink(RequestRefusedError(type(error).__name__, error.message, hint=error.hint, details=details))
        else:
            self._sinks[request.request_id] = sink

    def _abort(self, request_id: str) -> None:
        self.engine.abort(request_id)
        self._sinks.pop(request_id, None)

    def _report(self, deltas: Sequence[SampleDelta]) -> None:
        results = {delta.request_id: delta.request_output for delta in deltas if delta.request_output is not None}
        for delta in deltas:
            sink = self._sinks.get(delta.request_id)
            if sink is None:
                continue
            whole = self._reports_at_the_end(delta.request_id)
            result = delta.request_output
            if delta.request_id not in self._started and not (whole and result is None):
                self._started.add(delta.request_id)
                sink(self._start(delta.request_id, results.get(delta.request_id)))
            for sample in result.outputs if whole and result is not None else () if whole else (delta,):
                logprobs = sample.logprobs and [_position(position) for position in sample.logprobs]
                sink(
                    SampleUpdate(
                        delta.request_id,
                        sample.index,
                        sample.token_ids,
                        sample.finish_reason,
                        sample.stop_reason,
                        logprobs,
                    )
                )
            if result is not None:
                self._sinks.pop(delta.request_id)
                self._started.discard(delta.request_id)
                sink(RequestEnd(delta.request_id))

    def _start(self, request_id: str, result: RequestOutput | None) -> RequestStarted:
        output = self.engine._requests[request_id].output() if result is None else result
        rated = output.prompt_logprobs
        return RequestStarted(
            request_id,
            output.num_cached_tokens,
            None if rated is None else [None if entries is None else _position(entries) for entries in rated],
        )

    def _reports_at_the_end(self, request_id: str) -> bool:
        params = next(request.params for request in reversed(self.requests) if request.request_id == request_id)
        return "beam_width" in params or params.get("best_of", 0) > params.get("n", 1)


def _position(entries: dict[int, Logprob]) -> PositionLogprobs:
    return [TokenLogprob(token_id, entry.logprob, entry.rank) for token_id, entry in entries.items()]
