"""`looseleaf serve` as a process of its own, with a tiny model."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx

COMMAND = (sys.executable, "-c", "from looseleaf.cli.main import main; main()", "serve")
OPTIONS = ("--port", "0", "--dtype", "float32", "--kv-cache-memory", "1MB", "--threads", "1")


class Server:
    """Waits until it is ready."""

    def __init__(self, folder: Path, *options: str, environment: dict[str, str] | None = None) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [*COMMAND, str(folder), *OPTIONS, *options],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        )
        assert self.process.stderr is not None
        self._errors = self.process.stderr
        for line in self._errors:
            self.lines.append(line)
            if match := re.match(r"Ready: (http://\S+)/v1$", line):
                self.url = match[1]
                break
        else:
            raise AssertionError("".join(self.lines))
        self._reader = threading.Thread(target=lambda: self.lines.extend(self._errors))
        self._reader.start()

    def http(self, key: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def connect(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=10)

    def tell(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_for_line(self, text: str) -> None:
        wait_until(lambda: any(text in line for line in self.lines))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self._errors.close()


def wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received
