"""Runs a load test: sends each request when it is due, or when a place is free, and reads the answers.

A request that is sent late, because this program or its places were busy, counts from when it was due: a server that
holds the client up does not look better for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

import msgspec

from looseleaf.load.http_client import HttpClient
from looseleaf.load.streamed_answer import StreamedAnswer
from looseleaf.load.work import LoadRequest, words

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Asking:
    """How a request is put."""

    model: str
    endpoint: str = COMPLETIONS
    as_words: bool = False
    """Prompts as text; a chat's always are."""
    ignore_eos: bool = True
    temperature: float = 0.0
    timeout: float = 600.0

    def body(self, request: LoadRequest) -> bytes:
        chat = self.endpoint.endswith("/chat/completions")
        prompt = words(request.prompt) if chat or self.as_words else request.prompt.tolist()
        body = {
            "model": request.adapter or self.model,
            **({"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}),
            "max_tokens": request.output_tokens,
            "temperature": self.temperature if request.temperature is None else request.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.n > 1:
            body["n"] = request.n
        if self.ignore_eos:
            body["ignore_eos"] = True
        return msgspec.json.encode(body)


@dataclass(slots=True)
class LoadRun:
    """`answers` in the order of the requests; times are seconds."""

    duration: float = 0.0
    """From the start to the last answer's end."""
    cpu_seconds: float = 0.0
    """Of this program."""
    started: float = 0.0
    answers: list[StreamedAnswer] = field(default_factory=list)


async def open_loop(
    client: HttpClient,
    asking: Asking,
    work: Sequence[LoadRequest],
    due: Sequence[float],
    *,
    concurrency: int | None = None,
    on_end: Callable[[], None] = lambda: None,
) -> LoadRun:
    """Each request at its time. `concurrency`: most in progress; who is due beyond that waits, and its time runs."""
    places: AbstractAsyncContextManager[object] = (
        nullcontext() if concurrency is None else asyncio.Semaphore(concurrency)
    )
    run = _begin()

    async def at(scheduled: float, body: bytes) -> StreamedAnswer:
        async with places:
            return await _ask(client, asking, body, scheduled, on_end)

    async with asyncio.TaskGroup() as group:
        tasks = []
        for request, seconds in zip(work, due, strict=True):
            body, scheduled = asking.body(request), run.started + seconds
            while (early := scheduled - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            tasks.append(group.create_task(at(scheduled, body)))
    run.answers = [task.result() for task in tasks]
    return _finish(run)


async def closed_loop(
    client: HttpClient,
    asking: Asking,
    work: Sequence[LoadRequest],
    concurrency: int,
    *,
    on_end: Callable[[], None] = lambda: None,
) -> LoadRun:
    """Always `concurrency` requests in progress, as long as there are so many."""
    run = _begin()
    numbered: Iterator[tuple[int, LoadRequest]] = iter(enumerate(work))
    answers: dict[int, StreamedAnswer] = {}

    async def one_client() -> None:
        for number, request in numbered:
            body = asking.body(request)
            answers[number] = await _ask(client, asking, body, time.perf_counter(), on_end)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(work))):
            group.create_task(one_client())
    run.answers = [answers[number] for number in range(len(work))]
    return _finish(run)


async def _ask(
    client: HttpClient, asking: Asking, body: bytes, scheduled: float, on_end: Callable[[], None]
) -> StreamedAnswer:
    answer = StreamedAnswer(scheduled, time.perf_counter())
    failure = None
    try:
        async with asyncio.timeout(asking.timeout):
            await client.post(asking.endpoint, body, answer)
    except TimeoutError:
        failure = "timeout"
    except ConnectionRefusedError:
        failure = "connection refused"
    except OSError as error:
        failure = "connection closed" if isinstance(error, ConnectionError) else f"no connection: {error.strerror}"
    answer.end(time.perf_counter(), failure)
    on_end()
    return answer


def _begin() -> LoadRun:
    return LoadRun(started=time.perf_counter(), cpu_seconds=-time.process_time())


def _finish(run: LoadRun) -> LoadRun:
    run.cpu_seconds += time.process_time()
    run.duration = max((answer.ended for answer in run.answers), default=run.started) - run.started
    return run
