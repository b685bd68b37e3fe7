"""How servers end, and logs that cannot be written."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from server.faults.faulty_server import FaultyServer
from server.faults.load import requests
from server.faults.raw_http import ask, connected, message, put_together, read_answer
from server.server_process import COMMAND, OPTIONS

STREAMS = int(os.environ.get("LOOSELEAF_FAULT_STREAMS", "12"))


def test_sigterm_under_load(folder: Path, counted: Callable[..., None]) -> None:
    """All that runs or waits is finished, as if nothing had been; who comes late is told; exit 0."""
    server = FaultyServer(folder)
    load = requests(random.Random(5), STREAMS)
    late: list[int | None] = []

    async def one(path: str, body: object) -> object:
        async with connected(server.url) as connection:
            await connection.send(message(path, body))
            arrived.release()
            return put_together(await read_answer(connection.reader))

    async def come_late() -> None:
        while server.process.poll() is None:
            try:
                late.append((await ask(server.url, *load[0])).status)
            except (OSError, EOFError):
                late.append(None)
            await asyncio.sleep(0.02)

    async def body() -> None:
        expected = [put_together(await ask(server.url, *each)) for each in load]
        answers = [asyncio.create_task(one(*each)) for each in load]
        for _ in load:
            await arrived.acquire()
        while await server.metric("vllm:num_requests_running") == 0:
            await asyncio.sleep(0.001)
        server.tell(signal.SIGTERM)
        await asyncio.to_thread(server.wait_for_line, "Stopping")
        coming = asyncio.create_task(come_late())
        assert await asyncio.gather(*answers) == expected
        assert await asyncio.to_thread(server.process.wait, 60) == 0
        await coming
        assert set(late) <= {503, None}
        counted(answers_finished_after_SIGTERM=len(answers), late_requests_refused=len(late))

    arrived = asyncio.Semaphore(0)
    try:
        asyncio.run(body())
    finally:
        server.end()


def test_a_log_on_a_full_disk(folder: Path, counted: Callable[..., None]) -> None:
    """Nothing that is said can be written; requests are served all the same, restarts too, and it ends in order."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    load = requests(random.Random(6), 5)

    async def body(process: subprocess.Popen[bytes]) -> None:
        async with asyncio.timeout(60):
            while True:
                assert process.poll() is None
                try:
                    if (await ask(url, "/health/ready", method="GET")).status == 200:
                        break
                except OSError:
                    await asyncio.sleep(0.05)
        expected = [put_together(await ask(url, *each)) for each in load]
        engine = int(subprocess.check_output(["ps", "--ppid", str(process.pid), "-o", "pid="], text=True).split()[0])
        answers = [asyncio.create_task(ask(url, *each)) for each in load]
        await asyncio.sleep(0.05)
        os.kill(engine, signal.SIGKILL)
        assert [put_together(each) for each in await asyncio.gather(*answers)] == expected
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0

    options = [*OPTIONS, "--port", str(port)]
    with open("/dev/full", "wb") as full, subprocess.Popen([*COMMAND, str(folder), *options], stderr=full) as process:
        try:
            asyncio.run(body(process))
        finally:
            process.kill()
    counted(servers_with_a_full_disk=1)


def test_sigterm_while_it_starts(folder: Path) -> None:
    with subprocess.Popen([*COMMAND, str(folder), *OPTIONS], stderr=subprocess.PIPE, text=True) as process:
        while not _catches(process.pid, signal.SIGTERM):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0
    assert not re.search("Traceback|Ready", said)


def _catches(pid: int, number: int) -> bool:
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)
