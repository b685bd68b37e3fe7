"""CPU time that the front spends on one streamed token: `looseleaf serve` without its model.

    python benchmarks/bench_front.py [--streams 64] [--tokens 300] [--rounds 5] [--step-ms 5]

All of the front is there: keys and limits, metrics, uvicorn on a socket of 127.0.0.1. The engine's process is a
stand-in that sends every stream a token per step, over the real channel. The streams are read by a process of its own,
whose time does not count; the operating system's work for the front (a third of the whole: one `send` for each token)
does.

Rounds of a third of the tokens and of all of them take turns: the difference is what tokens cost, the rest is what
requests cost. `text alone` is the detokeniser and the stop checker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import socket
import statistics
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import uvloop
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.models.tokenizer import Tokenizer
from looseleaf.server.bind_address import bind
from looseleaf.server.client import RemoteEngine
from looseleaf.server.engine_life import EngineLife
from looseleaf.server.engine_process import Channel
from looseleaf.server.engine_settings import EngineSettings
from looseleaf.server.http_server import HttpServer
from looseleaf.server.identity import KeyRing
from looseleaf.server.interface import (
    AbortRequest,
    EngineStats,
    Event,
    GenerateRequest,
    ModelInfo,
    Ready,
    RequestEnd,
    RequestStarted,
    SampleUpdate,
    Stop,
    Updates,
)
from looseleaf.server.output_stream import OutputStream
from looseleaf.server.settings import ServerSettings
from looseleaf.server.step_ledger import StepLedger

TEXT = list(b" some words, one byte a token;")
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "stop": ["\n\n"]}
ROWS = ("text alone", "per token", "  of the program", "  of the system", "all, per token", "per request")
READER = """
import selectors, socket, sys, time
host, port, count, body = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].encode()
request = (b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n"
           b"Content-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
poll, done = selectors.DefaultSelector(), 0
for _ in range(count):
    s = socket.create_connection((host, port))
    s.sendall(request)
    poll.register(s, selectors.EVENT_READ, bytearray())
while done < count:
    time.sleep(0.01)  # or each token would wake this process, and on few cores put it in the way of the front
    for key, _ in poll.select():
        data = key.fileobj.recv(1 << 16)
        key.data.extend(data)
        if not data:
            assert key.data.rstrip().endswith(b"data: [DONE]\\n\\n\\r\\n0"), key.data[-300:]
            poll.unregister(key.fileobj)
            done += 1
"""


def byte_tokenizer() -> Tokenizer:
    """One token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken("<|end|>", special=True, normalized=False)])
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    return Tokenizer(backend, special_tokens={"eos_token": "<|end|>"}, chat_templates={"default": template})


def pretend(folder: Path, step_seconds: float, streams: int) -> None:
    """The engine's process: once there are as many requests as streams, all of them get a token in each step."""
    channel, ledger = Channel(folder), StepLedger(folder / "ledger")
    info = ModelInfo(
        vocab_size=257,
        eos_token_ids=[256],
        max_model_len=8192,
        largest_request=8192,
        block_size=16,
        num_blocks=512,
        max_num_seqs=streams,
    )
    channel.send(Ready(info))
    left: dict[str, int] = {}
    began = False
    with ledger:
        while True:
            for command in channel.commands(wait=not began):
                if isinstance(command, GenerateRequest):
                    left[command.request_id] = command.params["max_tokens"]
                elif isinstance(command, AbortRequest):
                    left.pop(command.request_id, None)
                elif isinstance(command, Stop):
                    channel.close()
                    return
            events: list[Event] = []
            if not began and len(left) == streams:
                began = True
                events += [RequestStarted(each, 0) for each in left]
            if not began:
                continue
            for name in list(left):
                left[name] -= 1
                token = TEXT[left[name] % len(TEXT)]
                events.append(SampleUpdate(name, 0, [token], None if left[name] else "length"))
                if not left[name]:
                    events.append(RequestEnd(name))
                    del left[name]
            channel.send(Updates(events, EngineStats(num_running=len(left))))
            began = bool(left)
            time.sleep(step_seconds)


def text_alone(tokenizer: Tokenizer, num_tokens: int) -> float:
    stream = OutputStream(0, SamplingParams(stop=["\n\n"]), tokenizer, [256])
    updates = [SampleUpdate("x", 0, [token]) for token in islice(cycle(TEXT), num_tokens)]
    start = time.process_time()
    for update in updates:
        stream.push(update)
    return time.process_time() - start


class _Spent(NamedTuple):
    """CPU seconds."""

    program: float
    system: float

    @classmethod
    def now(cls) -> _Spent:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return cls(used.ru_utime, used.ru_stime)


async def read_streams(bound: socket.socket, streams: int, num_tokens: int) -> _Spent:
    """What this process takes for it, per stream."""
    host, port = bound.getsockname()
    body = json.dumps(BODY | {"max_tokens": num_tokens})
    reader = await asyncio.create_subprocess_exec(sys.executable, "-c", READER, host, str(port), str(streams), body)
    before = _Spent.now()
    if await reader.wait():
        raise SystemExit("the reader did not get what it should")
    after = _Spent.now()
    return _Spent((after.program - before.program) / streams, (after.system - before.system) / streams)


async def measure(streams: int, num_tokens: int, rounds: int) -> dict[str, list[float]]:
    tokenizer = byte_tokenizer()
    settings = ServerSettings(EngineSettings(model="bench"), log_requests=False)
    results: dict[str, list[float]] = {name: [] for name in ROWS}
    with bind("127.0.0.1", 0) as bound:
        async with RemoteEngine(settings.engine) as engine:
            server = HttpServer(settings, KeyRing(), engine, tokenizer)
            await server.start(bound)
            few = num_tokens // 3
            for number in range(rounds + 1):  # the first warms up
                text = text_alone(tokenizer, num_tokens) / num_tokens
                short = await read_streams(bound, streams, few)
                long = await read_streams(bound, streams, num_tokens)
                program, system = ((b - a) / (num_tokens - few) for a, b in zip(short, long, strict=True))
                per_token, whole = program + system, sum(long)
                values = (text, per_token, program, system, whole / num_tokens, whole - per_token * num_tokens)
                if number:
                    for name, seconds in zip(results, values, strict=True):
                        results[name].append(1e6 * seconds)
            await server.stop()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--pretend", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pretend is not None:
        pretend(options.pretend, options.step_ms / 1000, options.streams)
        return
    EngineLife.command = (  # the stand-in
        *(sys.executable, __file__, "--streams", str(options.streams)),
        *("--step-ms", str(options.step_ms), "--pretend"),
    )
    results = uvloop.run(measure(options.streams, options.tokens, options.rounds))
    print(f"{options.streams} chat streams of {options.tokens} tokens, {options.rounds} rounds; CPU µs of the front")
    for name, values in results.items():
        print(f"{name:<16} {statistics.median(values):7.1f}   ({min(values):.1f} to {max(values):.1f})")


if __name__ == "__main__":
    main()
