"""CPU time that the front spends on one streamed token, without an engine: its updates come from memory.

    python benchmarks/bench_front.py [--streams 64] [--tokens 300] [--rounds 5]

Two ways, in turn: the handler path alone (the application called without a server), and all of it (uvicorn with uvloop
and httptools on a socket of 127.0.0.1, read by a process of its own whose time does not count). Beside them what the
detokeniser and the stop checker alone take.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import tokenizers
import uvicorn
import uvloop
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.models.tokenizer import Tokenizer
from looseleaf.server.app import create_app
from looseleaf.server.interface import (
    ClientState,
    EngineStats,
    Event,
    GenerateRequest,
    ModelInfo,
    RequestEnd,
    RequestStarted,
    SampleUpdate,
)
from looseleaf.server.output_stream import OutputStream
from looseleaf.server.settings import FrontSettings

TEXT = list(b" some words, one byte a token;")
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "stop": ["\n\n"]}
READER = """
import socket, sys, threading
host, port, count, body = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].encode()
def read():
    with socket.create_connection((host, port)) as s:
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n"
                  b"Content-Type: application/json\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
        while s.recv(1 << 16): pass
threads = [threading.Thread(target=read) for _ in range(count)]
for t in threads: t.start()
for t in threads: t.join()
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


class RememberedTokens:
    """An `EngineClient` whose streams all get a token in each turn of the event loop, as from one step."""

    state: ClientState = "ready"
    num_restarts = 0
    info = ModelInfo(
        vocab_size=257,
        eos_token_ids=[256],
        max_model_len=8192,
        largest_request=8192,
        block_size=16,
        num_blocks=512,
        max_num_seqs=64,
    )

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def stats(self) -> EngineStats:
        return EngineStats()

    def end_sample(self, request_id: str, index: int) -> None:
        pass

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        name = request.request_id
        yield RequestStarted(name, 0)
        for token in self.tokens[:-1]:
            await asyncio.sleep(0)
            yield SampleUpdate(name, 0, [token])
        yield SampleUpdate(name, 0, self.tokens[-1:], "length")
        yield RequestEnd(name)


async def handlers_alone(app: Callable[..., Any], streams: int) -> float:
    """CPU seconds for `streams` streams at once."""

    async def one() -> None:
        body = json.dumps(BODY).encode()
        waiting = asyncio.Event()
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if parts:
                return parts.pop()
            await waiting.wait()
            return {"type": "http.disconnect"}

        async def send(_message: dict[str, Any]) -> None:
            pass

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "raw_path": b"/v1/chat/completions",
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
            "server": ("x", 80),
            "client": ("x", 1),
        }
        await app(scope, receive, send)

    start = time.process_time()
    await asyncio.gather(*(one() for _ in range(streams)))
    return time.process_time() - start


async def over_http(port: int, streams: int) -> float:
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER, "127.0.0.1", str(port), str(streams), json.dumps(BODY), stdout=subprocess.DEVNULL
    )
    start = time.process_time()
    await reader.wait()
    return time.process_time() - start


def text_alone(tokenizer: Tokenizer, tokens: list[int]) -> float:
    stream = OutputStream(0, SamplingParams(stop=["\n\n"]), tokenizer, [256])
    updates = [SampleUpdate("x", 0, [token]) for token in tokens]
    start = time.process_time()
    for update in updates:
        stream.push(update)
    return time.process_time() - start


async def measure(streams: int, num_tokens: int, rounds: int) -> dict[str, list[float]]:
    tokens = (TEXT * (num_tokens // len(TEXT) + 1))[:num_tokens]
    tokenizer = byte_tokenizer()
    app = create_app(RememberedTokens(tokens), tokenizer, FrontSettings(("bench",)))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off", access_log=False))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    per_token: dict[str, list[float]] = {"text alone": [], "handlers": [], "over HTTP": []}
    for number in range(rounds + 1):  # the first warms up
        results = (
            text_alone(tokenizer, tokens) / num_tokens,
            await handlers_alone(app, streams) / (streams * num_tokens),
            await over_http(port, streams) / (streams * num_tokens),
        )
        if number:
            for name, seconds in zip(per_token, results, strict=True):
                per_token[name].append(1e6 * seconds)
    server.should_exit = True
    await serving
    return per_token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    per_token = uvloop.run(measure(options.streams, options.tokens, options.rounds))
    print(f"{options.streams} chat streams of {options.tokens} tokens, {options.rounds} rounds; CPU µs per token")
    for name, values in per_token.items():
        print(f"{name:<12} {statistics.median(values):6.1f}   ({min(values):.1f} to {max(values):.1f})")


if __name__ == "__main__":
    main()
