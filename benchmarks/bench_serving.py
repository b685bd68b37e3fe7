"""What serving costs on top of the engine: a workload offline and through HTTP on the same processors, in turns.

    python benchmarks/bench_serving.py WORKLOAD.json [--test T3] [--rounds 3] [--model NAME] [--kv-cache-memory 1GiB]

The engine of this process runs a draw, then `looseleaf serve` with the same settings gets it as streaming requests,
all at once, one connection each. The client is a process of its own that reads raw sockets, every few milliseconds, as
it shares the processors; its CPU time is printed. The texts must be the same.

The time to the first token at low load is measured with one request at a time: the engine's, and as the client sees it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from looseleaf.engine.config import EngineConfig
from looseleaf.engine.generation_request import GenerationRequest
from looseleaf.engine.llm import load_engine
from looseleaf.engine.workload import run_workload
from looseleaf.engine.workload_file import load_workload

READ_SECONDS = 0.005
LOW_LOAD_REQUESTS = 20
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", type=Path)
    parser.add_argument("--test", default="T3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-requests", type=int)
    parser.add_argument("--max-tokens", type=int, default=1 << 20, help="of each answer, where it is to be quicker")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--kv-cache-memory", default="1GiB")
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    draws = [
        [each._replace(params=shortened(each.params, options.max_tokens)) for each in draw[: options.max_requests]]
        for draw in load_workload(options.workload).draws(options.test)
    ]
    config = EngineConfig(
        kv_cache_memory=options.kv_cache_memory,
        max_model_len=2048,
        dtype=options.dtype,
        enable_prefix_caching=False,
    )
    engine = load_engine(options.model, config)
    arguments = (options.model, "--kv-cache-memory", options.kv_cache_memory, "--dtype", options.dtype)
    with served(*arguments, "--max-model-len", "2048", "--no-enable-prefix-caching") as server:
        ratios = []
        few = [each._replace(params=shortened(each.params, 4)) for each in draws[-1][:8]]
        run_workload(engine, few)
        Client(server.address, bodies(few)).run()
        print("round  offline tok/s  served tok/s  ratio  CPU s: client, front, engine   front µs/token  same texts")
        for number in range(options.rounds):
            draw = draws[number % len(draws)]
            offline = run_workload(engine, draw)
            before = server.cpu_seconds()
            client = Client(server.address, bodies(draw))
            answer = client.run()
            front, its_engine = (b - a for a, b in zip(before, server.cpu_seconds(), strict=True))
            same = answer["texts"] == [output.outputs[0].text for output in offline.outputs]
            rate = answer["tokens"] / answer["seconds"]
            ratios.append(rate / offline.output_tokens_per_second)
            print(
                f"{number + 1:5}  {offline.output_tokens_per_second:13.1f}  {rate:12.1f}  {ratios[-1]:5.3f}  "
                f"{answer['cpu']:13.2f} {front:6.2f} {its_engine:7.2f}  {1e6 * front / answer['tokens']:15.1f}  "
                f"{'yes' if same else 'NO':>10}",
                flush=True,
            )
        print(f"served / offline: {median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
        low_load(engine, server, draws[0])


def low_load(engine: Any, server: Server, draw: list[GenerationRequest]) -> None:
    """One request at a time, of up to 32 prompt tokens and one token out."""
    alone, through = [], []
    for each in draw[:LOW_LOAD_REQUESTS]:
        request = each._replace(prompt=token_ids(each)[:32], params=shortened(each.params, 1))
        alone.append(1000 * run_workload(engine, [request]).first_token_seconds[0])
        through.append(1000 * Client(server.address, bodies([request]), pause=0).run()["first"][0])
    added = [b - a for a, b in zip(alone, through, strict=True)]
    print(
        f"first token of one request, ms: engine {median(alone):.1f}, through HTTP {median(through):.1f}; added "
        f"{median(added):.1f} ({min(added):.1f} to {max(added):.1f})"
    )


def shortened(params: Any, max_tokens: int) -> Any:
    return replace(params, max_tokens=min(max_tokens, params.max_tokens))


def token_ids(request: GenerationRequest) -> list[int]:
    prompt: Any = request.prompt
    return list(prompt)


def bodies(draw: list[GenerationRequest]) -> list[dict[str, Any]]:
    return [
        {
            "prompt": token_ids(each),
            "max_tokens": each.params.max_tokens,
            "temperature": each.params.temperature,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for each in draw
    ]


@dataclass
class Server:
    address: tuple[str, int]
    processes: list[int]
    """Ids: front and engine."""

    def cpu_seconds(self) -> list[float]:
        found = []
        for process in self.processes:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            found.append((int(fields[11]) + int(fields[12])) / TICKS)
        return found


@contextmanager
def served(*arguments: str) -> Iterator[Server]:
    program = "from looseleaf.cli.main import main; main()"
    front = subprocess.Popen(
        [sys.executable, "-c", program, "serve", *arguments, "--port", "0", "-q"], stderr=subprocess.PIPE, text=True
    )
    assert front.stderr is not None
    try:
        for line in front.stderr:
            if found := re.match(r"Ready: http://([\d.]+):(\d+)/v1", line):
                break
        else:
            raise SystemExit("The server did not start.")
        children = Path(f"/proc/{front.pid}/task/{front.pid}/children").read_text().split()
        yield Server((found[1], int(found[2])), [front.pid, int(children[0])])
    finally:
        front.terminate()
        front.communicate()


class Client:
    """A process that sends all requests at once and reads their streams to the end."""

    def __init__(self, address: tuple[str, int], requests: list[dict[str, Any]], pause: float = READ_SECONDS) -> None:
        self._input = json.dumps({"address": address, "bodies": requests, "pause": pause})
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--client"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self) -> dict[str, Any]:
        output, _ = self._process.communicate(self._input)
        answer: dict[str, Any] = json.loads(output)
        return answer


def client() -> None:
    """Prints its figures as JSON: seconds, tokens, texts, seconds to the first token of each, CPU seconds."""
    work = json.load(sys.stdin)
    requests = [json.dumps(body).encode() for body in work["bodies"]]
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    poll = selectors.DefaultSelector()
    sockets = [socket.create_connection(tuple(work["address"])) for _ in requests]
    received = [bytearray() for _ in requests]
    first: list[float | None] = [None] * len(requests)
    before = time.process_time()
    start = time.perf_counter()
    for index, (each, body) in enumerate(zip(sockets, requests, strict=True)):
        each.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        poll.register(each, selectors.EVENT_READ, index)
    while poll.get_map():
        for key, _ in poll.select():
            data = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
            received[key.data] += data
            if first[key.data] is None and b"data: " in data:
                first[key.data] = time.perf_counter() - start
            if not data:
                poll.unregister(key.fileobj)
        if work["pause"]:
            time.sleep(work["pause"])
    seconds, cpu = time.perf_counter() - start, time.process_time() - before
    texts, tokens = [], 0
    for stream in received:
        events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith(b"data: {")]
        if not events or "usage" not in events[-1] or events[-1]["usage"] is None:
            raise SystemExit(f"A stream is not complete: {bytes(stream[-500:])!r}")
        texts.append("".join(choice["text"] for event in events for choice in event["choices"]))
        tokens += events[-1]["usage"]["completion_tokens"]
    print(json.dumps({"seconds": seconds, "tokens": tokens, "texts": texts, "first": first, "cpu": cpu}))


if __name__ == "__main__":
    if sys.argv[1:] == ["--client"]:
        client()
    else:
        main()
