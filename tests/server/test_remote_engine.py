"""The engine in its own process is the engine; whatever happens to the process, its clients see a pause at most."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest

from engine_events import Collected, collect, request
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.llm import load_engine
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.errors import InvalidRequest
from looseleaf.kernels import native
from looseleaf.server.client import RemoteEngine
from looseleaf.server.engine_events import EventMaker
from looseleaf.server.engine_process import CRASH_VARIABLE
from looseleaf.server.engine_settings import EngineSettings
from looseleaf.server.interface import (
    EngineCrashed,
    EngineStartFailed,
    EngineStopped,
    GenerateRequest,
    RequestRefusedError,
    SampleUpdate,
)
from tiny_model import write_tiny_folder

CONFIG = {"dtype": "float32", "block_size": 4, "max_num_seqs": 16, "kv_cache_memory": "2MB", "max_model_len": 400}
KILLS = int(os.environ.get("LOOSELEAF_TEST_KILLS", "3"))
"""Each costs the start of a process; the fault suite asks for more."""
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def settings(folder: Path) -> EngineSettings:
    return EngineSettings(model=str(folder), config=CONFIG, threads=1, log_level="CRITICAL")


@pytest.fixture
def run(settings: EngineSettings) -> Run:
    """Run a coroutine function with an engine that is ready."""

    def with_engine(body: Callable[[RemoteEngine], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with asyncio.timeout(600), RemoteEngine(settings) as engine:
                return await body(engine)

        return asyncio.run(main())

    return with_engine


def undisturbed(folder: Path, requests: list[GenerateRequest]) -> dict[str, Collected]:
    """The answers of an engine in this process."""
    engine = load_engine(folder, EngineConfig.parse(CONFIG))
    events = EventMaker(engine)
    engine.on_plan = events.planned
    collected: dict[str, Collected] = {}
    for each in requests:
        engine.add_request(TokenPrompt(each.prompt_token_ids, None), each.params, request_id=each.request_id)
        events.added(each.request_id, engine._requests[each.request_id].params)
        collected[each.request_id] = Collected()
    while engine.has_unfinished():
        for event in events.events(engine.step()):
            collected[event.request_id].take(event)
    return collected


def same(found: Collected, expected: Collected) -> bool:
    def shown(collected: Collected) -> Any:
        exact = native.is_chosen()
        return {
            index: (each.token_ids, each.finish, each.logprobs if exact else len(each.logprobs))
            for index, each in collected.samples.items()
        }

    prompts = [each.started.prompt_logprobs if each.started else None for each in (found, expected)]
    return shown(found) == shown(expected) and (prompts[0] == prompts[1] or not native.is_chosen())


def load(rng: random.Random, count: int, **changes: Any) -> list[GenerateRequest]:
    """Requests of every kind that can be resumed, and some that begin again."""
    requests = []
    for number in range(count):
        kind = rng.choice(["greedy", "drawn", "samples", "penalised", "logprobs", "best_of", "beams", "structured"])
        params: dict[str, Any] = {
            "greedy": {"temperature": 0},
            "drawn": {"top_k": 30, "ignore_eos": False},
            "samples": {"n": 3, "stop_token_ids": list(range(0, 256, 9))},
            "penalised": {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "min_tokens": 5},
            "logprobs": {"logprobs": 2, "prompt_logprobs": 1},
            "best_of": {"n": 1, "best_of": 2},
            "beams": {"beam_width": 2, "n": 2},
            "structured": {"structured": {"regex": "([a-z]+ ){3,40}[0-9]"}, "ignore_eos": False},
        }[kind]
        most = rng.randint(1, 60 if kind in ("best_of", "beams") else 300)
        params = {"max_tokens": most, "seed": number} | params | changes
        if "min_tokens" in params:
            params["min_tokens"] = min(params["min_tokens"], most)
        prompt = [rng.randrange(256) for _ in range(rng.randint(1, 40))]
        requests.append(request(f"{kind}-{number}", prompt, **params))
    return requests


def test_it_answers_as_the_engine_does(run: Run, folder: Path) -> None:
    requests = load(random.Random(1), 14)
    expected = undisturbed(folder, requests)

    async def body(engine: RemoteEngine) -> list[Collected]:
        assert engine.state == "ready"
        assert engine.info.vocab_size == 257
        assert engine.info.eos_token_ids == [256]
        assert engine.info.model_path == str(folder)
        found = await asyncio.gather(*(collect(engine, each) for each in requests))
        await asyncio.sleep(0.05)
        stats = engine.stats()
        assert stats.num_running == stats.num_waiting == engine.num_in_flight == 0
        assert stats.free_blocks == stats.total_blocks == engine.info.num_blocks
        assert stats.generated_tokens >= sum(len(s.token_ids) for each in found for s in each.samples.values())
        return list(found)

    for each, found in zip(requests, run(body), strict=True):
        assert same(found, expected[each.request_id]), each


def test_streams_go_on_when_the_process_is_killed(run: Run, folder: Path) -> None:
    rng = random.Random(2)
    requests = load(rng, 24)
    expected = undisturbed(folder, requests)

    async def body(engine: RemoteEngine) -> list[Collected]:
        async def killer() -> None:
            for _ in range(KILLS):
                await asyncio.sleep(rng.uniform(0.0, 0.08))
                while engine.state != "ready":
                    await asyncio.sleep(0.01)
                before, pid = engine.num_restarts, engine.pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                died = time.monotonic()
                while engine.state == "ready":
                    await asyncio.sleep(0.001)
                noticed.append(time.monotonic() - died)
                while engine.num_restarts == before:
                    await asyncio.sleep(0.01)

        async def client(number: int) -> list[tuple[GenerateRequest, Collected]]:
            """One request after another, until the last kill."""
            answers = []
            while not killing.done() or not answers:
                each = requests[number % len(requests)]
                number += 5
                named = GenerateRequest(
                    request_id=f"{each.request_id}/{next(ids)}",
                    prompt_token_ids=each.prompt_token_ids,
                    params=each.params,
                )
                answers.append((each, await collect(engine, named)))
            return answers

        ids = iter(range(10**9))
        noticed: list[float] = []
        killing = asyncio.create_task(killer())
        served = [pair for answers in await asyncio.gather(*(client(i) for i in range(12))) for pair in answers]
        await killing
        assert engine.num_restarts == len(noticed) == KILLS
        assert len(served) >= 12
        return served

    for each, found in run(body):
        assert same(found, expected[each.request_id]), each


def test_who_ends_the_process_again_and_again_is_given_up_and_nobody_else(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = load(random.Random(3), 8)
    expected = undisturbed(folder, requests)
    monkeypatch.setenv(CRASH_VARIABLE, "poison")

    async def body(engine: RemoteEngine) -> list[Collected]:
        tasks = [asyncio.create_task(collect(engine, each)) for each in requests]
        await asyncio.sleep(0.01)
        with pytest.raises(EngineCrashed) as caught:
            await collect(engine, request("poison"))
        assert caught.value.crashes == 3
        assert engine.num_restarts >= 2
        return list(await asyncio.gather(*tasks))

    for each, found in zip(requests, run(body), strict=True):
        assert same(found, expected[each.request_id]), each


def test_a_reader_that_leaves_frees_the_blocks(run: Run) -> None:
    async def body(engine: RemoteEngine) -> None:
        async def read(number: int) -> None:
            async with aclosing(engine.generate(request(f"{number}", max_tokens=300, n=1 + number % 3))) as events:
                async for event in events:
                    if isinstance(event, SampleUpdate):
                        return

        await asyncio.gather(*(read(number) for number in range(40)))
        waiting = [asyncio.create_task(collect(engine, request(f"w{i}", max_tokens=390))) for i in range(20)]
        await asyncio.sleep(0.02)
        for task in waiting:
            task.cancel()
        for task in waiting:
            with suppress(asyncio.CancelledError):
                await task
        await collect(engine, request("last", max_tokens=1))
        await asyncio.sleep(0.05)
        stats = engine.stats()
        assert engine.num_in_flight == stats.num_running == stats.num_waiting == 0
        assert stats.free_blocks == stats.total_blocks

    run(body)


def test_a_slow_reader_gets_everything_in_few_pieces_and_holds_up_nobody(run: Run) -> None:
    async def body(engine: RemoteEngine) -> None:
        slow, pieces = Collected(), 0
        events = engine.generate(request("slow", n=2, max_tokens=300, logprobs=1))
        slow.take(await anext(events))
        others = [await collect(engine, request(f"{i}", max_tokens=350)) for i in range(3)]
        assert all(len(each.samples[0].token_ids) == 350 for each in others)
        async for event in events:
            slow.take(event)
            pieces += isinstance(event, SampleUpdate)
        assert pieces <= 4
        quick = await collect(engine, request("quick", n=2, max_tokens=300, logprobs=1))
        assert same(slow, quick)

    run(body)


def test_one_sample_ends_early(run: Run) -> None:
    async def body(engine: RemoteEngine) -> None:
        whole = await collect(engine, request("whole", n=2, max_tokens=200))
        counts = {0: 0, 1: 0}
        async for event in engine.generate(request("it", n=2, max_tokens=200)):
            if isinstance(event, SampleUpdate):
                counts[event.index] += len(event.token_ids)
                assert (
                    event.token_ids
                    == whole.samples[event.index].token_ids[: counts[event.index]][-len(event.token_ids) :]
                )
                if event.index == 0:
                    engine.end_sample("it", 0)
        assert counts[0] < counts[1] == 200
        async for event in engine.generate(request("both", n=2, max_tokens=200)):
            if isinstance(event, SampleUpdate):
                engine.end_sample("both", 0)
                engine.end_sample("both", 1)
        engine.end_sample("both", 0)
        await asyncio.sleep(0.05)
        assert engine.stats().num_running == 0

    run(body)


def test_what_the_engine_refuses_is_raised_with_its_numbers(run: Run) -> None:
    async def body(engine: RemoteEngine) -> None:
        for bad, error, details in [
            (request("a", max_tokens=399), "RequestTooLarge", {"needed": 404, "limit": 400}),
            (request("b", temperature=-1), "InvalidParameter", {"name": "temperature", "value": -1}),
            (request("c", heat=1), "UnknownParameter", {"name": "heat"}),
            (request("d", [5, 257]), "InvalidPrompt", {}),
            (request("e", stop="x"), "InvalidParameter", {"name": "detokenize"}),
        ]:
            with pytest.raises(RequestRefusedError) as caught:
                await collect(engine, bad)
            assert caught.value.error == error
            assert details.items() <= caught.value.details.items()
            assert caught.value.message
        async with aclosing(engine.generate(request("twice"))) as events:
            await anext(events)
            with pytest.raises(InvalidRequest, match="in use"):
                await collect(engine, request("twice"))
        assert len((await collect(engine, request("twice"))).samples[0].token_ids) == 20

    run(body)


def test_why_an_engine_cannot_start_is_said(settings: EngineSettings, tmp_path: Path) -> None:
    async def start(changed: EngineSettings) -> EngineStartFailed:
        engine = RemoteEngine(changed)
        with pytest.raises(EngineStartFailed) as caught:
            await engine.start()
        assert engine.state == "stopped"
        with pytest.raises(EngineStopped):
            await collect(engine, request("it"))
        await engine.stop()
        return caught.value

    missing = asyncio.run(start(EngineSettings(model=str(tmp_path / "nothing"))))
    assert "nothing" in missing.message
    wrong = asyncio.run(start(EngineSettings(model=settings.model, config={"block_sise": 4})))
    assert (wrong.error, "block_size" in wrong.hint) == ("ConfigurationError", True)


def test_the_end_of_the_server_is_the_end_of_what_is_in_flight(settings: EngineSettings) -> None:
    async def body() -> None:
        engine = RemoteEngine(settings)
        await engine.start()
        pid = engine.pid
        task = asyncio.create_task(collect(engine, request("it", max_tokens=390)))
        await asyncio.sleep(0)
        await engine.stop()
        with pytest.raises(EngineStopped):
            await task
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert (engine.state, engine.pid) == ("stopped", None)

    asyncio.run(body())


def test_the_engine_ends_with_its_front(settings: EngineSettings) -> None:
    program = f"""
import asyncio, os, sys
from looseleaf.server.client import RemoteEngine
from looseleaf.server.engine_settings import EngineSettings
async def main():
    engine = RemoteEngine(EngineSettings(model={settings.model!r}, config={settings.config!r}, threads=1))
    await engine.start()
    print(engine.pid, "torch" in sys.modules, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == -signal.SIGKILL
    pid, front_has_torch = done.stdout.split()
    assert front_has_torch == "False"
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and Path(f"/proc/{pid}/stat").exists():
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break  # ended; whoever adopted it has not looked yet
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{pid}/stat").exists()
