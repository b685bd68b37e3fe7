"""`looseleaf serve` as a process of its own: who is let in, what is too much, and how it ends."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from looseleaf.cli.main import make_app
from server.server_process import Server, read_all, wait_until
from tiny_model import write_tiny_folder

KEYS = """
[tenants.reading]
keys = ["r-1"]
max_concurrent_requests = 1
lowest_priority_value = 0

[tenants.writing]
keys = ["w-1"]

[tenants.small]
keys = ["s-1"]
tokens_per_minute = 20
"""
LIMITS = (
    *("--max-body-bytes", "20000", "--body-timeout", "2", "--max-header-bytes", "4000", "--header-timeout", "0.5"),
    *("--max-connections", "20", "--max-queue", "2", "--max-num-seqs", "2", "--drain-timeout", "20"),
)
LONG = {"prompt": [1, 2, 3], "max_tokens": 400, "ignore_eos": True, "temperature": 0}
LONGER = LONG | {"prompt": [[1], [2], [3], [4]], "n": 2, "stream": True}
LONGEST = LONG | {"prompt": [[each] for each in range(20)], "n": 2, "stream": True}
SHORT = {"prompt": [1, 2, 3], "max_tokens": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(KEYS)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def server(folder: Path, keys: Path) -> Iterator[Server]:
    running = Server(folder, "--api-key-file", str(keys), *LIMITS)
    yield running
    running.end()


@pytest.fixture
def open_server(folder: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*options: str) -> Server:
        started.append(Server(folder, *options))
        return started[-1]

    yield start
    for each in started:
        each.end()


def error(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()["error"]
    assert found["code"] == code
    return found


def test_keys(server: Server) -> None:
    with server.http() as client:
        for path in ("/health", "/health/ready", "/version"):
            assert client.get(path).status_code == 200
        assert "vllm:num_requests_running" in client.get("/metrics").text
        answer = client.post("/v1/completions", json=SHORT)
        error(answer, 401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        for header in ("Bearer", "Bearer x", "Basic w-1", "w-1", "Bearer r-1x"):
            error(client.get("/v1/models", headers={"Authorization": header}), 401, "invalid_api_key")
    with server.http("w-1") as client:
        assert client.post("/v1/completions", json=SHORT).status_code == 200


def test_a_broken_file_keeps_the_keys_and_a_good_one_changes_them(server: Server, keys: Path) -> None:
    keys.write_text("[tenants")
    server.tell(signal.SIGHUP)
    server.wait_for_line("stay as they are")
    with server.http("w-1") as client, server.http("w-2") as later:
        assert client.get("/v1/models").status_code == 200
        keys.write_text(KEYS + '\n[tenants.later]\nkeys = ["w-2"]\n')
        server.tell(signal.SIGHUP)
        wait_until(lambda: later.get("/v1/models").status_code == 200)
        assert client.get("/v1/models").status_code == 200
    assert not any("w-2" in line for line in server.lines)


def test_tenants_share_no_cache(server: Server) -> None:
    prompt = {"prompt": list(range(100)), "max_tokens": 1}

    def cached(key: str) -> int:
        with server.http(key) as client:
            usage = client.post("/v1/completions", json=prompt).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached("w-1") == 0
    assert cached("w-1") > 0
    assert cached("r-1") == 0


def test_limits_of_a_tenant(server: Server) -> None:
    with server.http("s-1") as client:
        assert client.post("/v1/completions", json=LONG | {"max_tokens": 40}).status_code == 200
        over = client.post("/v1/completions", json=SHORT)
        error(over, 429, "rate_limit_exceeded")
        assert 1 <= int(over.headers["retry-after"]) <= 120
    with server.http("r-1") as client:
        error(client.post("/v1/completions", json=SHORT | {"priority": -1}), 400, "invalid_value")
        with client.stream("POST", "/v1/completions", json=LONGER) as stream:
            lines = stream.iter_lines()  # kept: one that is dropped closes the stream
            next(lines)
            error(client.post("/v1/completions", json=SHORT), 429, "rate_limit_exceeded")
        wait_until(lambda: client.post("/v1/completions", json=SHORT).status_code == 200)


def test_a_full_queue(server: Server) -> None:
    with server.http("w-1") as client:
        # Of eight prompts two may run and two wait.
        full = client.post("/v1/completions", json=LONG | {"prompt": [[1, 2], [3, 4]] * 4, "max_tokens": 200})
        error(full, 429, "queue_full")
        assert int(full.headers["retry-after"]) >= 1
        assert client.post("/v1/completions", json=SHORT).status_code == 200


def test_what_never_fits(server: Server) -> None:
    with server.http("w-1") as client:
        found = error(client.post("/v1/completions", json=LONG | {"max_tokens": 4000}), 400, "context_length_exceeded")
        assert {"4003", "512"} <= set(re.findall(r"\d+", found["message"]))


def test_deadlines(server: Server) -> None:
    # Longer than a test takes: the one sample after another of 400 tokens each.
    long = LONG | {"n": 2}
    with server.http("w-1") as client:
        for bad in ("0", "-1", "soon", "nan"):
            error(client.post("/v1/completions", json=SHORT, headers={"X-Request-Timeout": bad}), 400, "invalid_value")
        soon = {"X-Request-Timeout": "0.005"}
        error(client.post("/v1/completions", json=long, headers=soon), 504, "request_timeout")
        wait_until(lambda: client.post("/v1/completions", json=SHORT).status_code == 200)


def test_bodies(server: Server) -> None:
    with server.http("w-1") as client:
        error(client.post("/v1/completions", content=b"x" * 20001), 413, "body_too_large")
        error(client.post("/v1/completions", content=iter([b"x" * 9000] * 3)), 413, "body_too_large")
        error(client.post("/v1/completions", content=b"x" * 2000), 400, "invalid_json")
    with server.connect() as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer w-1\r\nContent-Length: 10\r\n\r\n{")
        answer = read_all(slow)
    assert b" 408 " in answer.splitlines()[0]
    assert b"body_timeout" in answer


def test_headers(server: Server) -> None:
    with server.connect() as flood:
        flood.sendall(b"GET /version HTTP/1.1\r\n" + b"X-A: 12345678\r\n" * 400)
        assert b" 431 " in read_all(flood).splitlines()[0]
    with server.connect() as endless:
        endless.sendall(b"GET /version HTTP/1.1\r\nX-A: " + b"a" * 5000)
        assert b" 431 " in read_all(endless).splitlines()[0]
    with server.connect() as half:
        half.sendall(b"GET /version HTTP/1.1\r\nX-A: ")
        assert b" 408 " in read_all(half).splitlines()[0]
    with server.connect() as silent:
        assert read_all(silent) == b""
    with server.http() as client:
        assert client.get("/version", headers={"X-A": "a" * 3000}).status_code == 200


def test_connections(server: Server) -> None:
    held = [server.connect() for _ in range(20)]
    try:
        with server.connect() as one_more:
            assert b" 503 " in read_all(one_more).splitlines()[0]
    finally:
        for each in held:
            each.close()
    with server.http() as client:
        wait_until(lambda: client.get("/version").status_code == 200)


def test_what_takes_too_long_is_ended(open_server: Callable[..., Server]) -> None:
    server = open_server("--max-num-seqs", "2", "--drain-timeout", "0")
    with server.http() as client:
        with client.stream("POST", "/v1/completions", json=LONGEST) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.tell(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert "server_stopping" in rest[-2]
    assert server.process.wait(30) == 0


def test_a_second_signal_ends_it_at_once(open_server: Callable[..., Server]) -> None:
    server = open_server("--max-num-seqs", "2")
    with server.http() as client, client.stream("POST", "/v1/completions", json=LONGEST) as it:
        lines = it.iter_lines()  # kept: one that is dropped closes the stream
        next(lines)
        server.tell(signal.SIGTERM)
        server.wait_for_line("Stopping")
        server.tell(signal.SIGINT)
        assert server.process.wait(30) == 128 + signal.SIGINT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["no-such-model"], "There is no model"),
        (["--host", "0.0.0.0"], "no API keys"),
        (["--api-key-file", "/no/such/file"], "cannot be read"),
        (["--block-size", "0"], "block_size"),
        (["--lora", "nothing"], "names no adapter"),
    ],
)
def test_what_keeps_it_from_starting(
    options: list[str], message: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = options if options == ["no-such-model"] else [str(folder), "--port", "0", *options]
    refused(capfd, message, *arguments)


def test_a_port_in_use(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused(capfd, f"port {port}: address already in use", str(folder), "--port", port)


def refused(capfd: pytest.CaptureFixture[str], message: str, *arguments: str) -> None:
    """In this process, which has all imports already."""
    with pytest.raises(SystemExit) as ended:
        make_app()(["serve", *arguments])
    said = capfd.readouterr().err
    assert ended.value.code == 2
    assert message in said
    assert "Traceback" not in said


def test_the_front_computes_nothing() -> None:
    program = "import sys, looseleaf.server.serving, looseleaf.server.http_server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_sigterm_lets_streams_end(server: Server) -> None:
    # The last test of this server.
    with server.http("w-1") as client, server.http("w-1") as other:
        with client.stream("POST", "/v1/completions", json=LONGER) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.tell(signal.SIGTERM)
            server.wait_for_line("Stopping")
            try:
                late = other.post("/v1/completions", json=SHORT)
            except httpx.TransportError:
                pass  # the stream was over already
            else:
                error(late, 503, "server_stopping")
                assert late.headers["connection"] == "close"
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]
    assert server.process.wait(30) == 0
