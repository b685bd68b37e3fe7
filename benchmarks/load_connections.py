"""Many streaming connections at once to a running server: is any lost, and does its memory stay flat?

Starts `looseleaf serve` itself (the default model, or --model), opens --connections at once, each of which asks for a
short stream, waits for all, and does so --waves times. Prints how many streams were complete, and the memory of the
server's two processes after each wave.

    python benchmarks/load_connections.py --connections 1000 --waves 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

from looseleaf.server.open_files import allow_connections

SERVE = (sys.executable, "-c", "from looseleaf.cli.main import main; main()", "serve")


async def stream(host: str, port: int, body: bytes, outcomes: Counter[str], open_now: list[int]) -> None:
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError as error:
        outcomes[f"not connected: {error}"] += 1
        return
    open_now[0] += 1
    open_now[1] = max(open_now)
    try:
        writer.write(body)
        answer = await reader.read(-1)
    except OSError as error:
        outcomes[f"lost: {error}"] += 1
        return
    finally:
        open_now[0] -= 1
        writer.transport.abort()
    status = answer[9:12].decode()
    if status != "200":
        outcomes[f"refused with {status or 'nothing'}"] += 1
    elif answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") and b'"finish_reason":"length"' in answer:
        outcomes["complete"] += 1
    else:
        outcomes["cut short"] += 1


async def waves(url: str, front: psutil.Process, options: argparse.Namespace) -> bool:
    host, port = re.sub("^http://", "", url).split(":")
    prompt = {"prompt": [1, 2, 3, 4], "max_tokens": options.tokens, "ignore_eos": True, "stream": True}
    content = json.dumps(prompt | {"temperature": 0}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    body = f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content
    engine = front.children()[0]

    def memory() -> tuple[float, float]:
        return front.memory_info().rss / 2**20, engine.memory_info().rss / 2**20

    print(f"before    front {memory()[0]:7.1f} MiB   engine {memory()[1]:7.1f} MiB")
    everything: Counter[str] = Counter()
    seen: list[tuple[float, float]] = []
    for number in range(1, options.waves + 1):
        outcomes: Counter[str] = Counter()
        open_now = [0, 0]
        began = time.perf_counter()
        await asyncio.gather(*(stream(host, int(port), body, outcomes, open_now) for _ in range(options.connections)))
        seconds = time.perf_counter() - began
        everything += outcomes
        await asyncio.sleep(0.5)
        seen.append(memory())
        said = ", ".join(f"{count:,} {name}" for name, count in outcomes.most_common())
        print(
            f"wave {number:2}   front {seen[-1][0]:7.1f} MiB   engine {seen[-1][1]:7.1f} MiB   "
            f"{open_now[1]:,} open at once   {seconds:5.1f} s   {said}"
        )
    growth = [seen[-1][each] - seen[0][each] for each in (0, 1)]
    print(f"from the first wave to the last: front {growth[0]:+.1f} MiB, engine {growth[1]:+.1f} MiB")
    return bool(everything["complete"] == options.waves * options.connections)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="as looseleaf serve takes it; the default model if not given")
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--waves", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=8, help="of each stream")
    parser.add_argument("--max-num-seqs", type=int, default=64)
    options = parser.parse_args()
    allow_connections(options.connections)
    command = [*SERVE, *([options.model] if options.model else []), "--port", "0"]
    command += ["--max-num-seqs", str(options.max_num_seqs)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path.cwd()) as process:
        assert process.stderr is not None
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if match := re.search(r"Ready: (http://\S+)/v1$", line):
                    break
            else:
                sys.exit("".join(said))
            complete = asyncio.run(waves(match[1], psutil.Process(process.pid), options))
        finally:
            process.terminate()
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
