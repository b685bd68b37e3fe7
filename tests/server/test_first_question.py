"""`looseleaf serve --ask`: asked over HTTP; the server stays where somebody can stop it, and only there."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from looseleaf.cli.first_question import QuestionFailed, answer
from server.server_process import COMMAND, OPTIONS
from tiny_model import write_tiny_folder

ASKING = (*OPTIONS, "--ask", "a b")
HI = b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


@contextmanager
def scripted(status: int, body: bytes) -> Iterator[str]:
    """A server that always answers this."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_an_answer_comes_in_pieces() -> None:
    with scripted(200, HI + b": a comment\n\n" + b'data: {"choices": [{"delta": {}}]}\n\n' + HI + DONE) as url:
        assert list(answer(url, "?", None)) == ["Hi", "", "Hi"]


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (200, HI, "broke off"),
        (200, HI + b'data: {"error": {"message": "The engine is lost."}}\n\n' + DONE, "The engine is lost"),
        (401, b'{"error": {"message": "An API key is needed."}}', "401: An API key is needed"),
        (500, b"<html>", "500: <html>"),
    ],
)
def test_an_answer_that_is_none(status: int, body: bytes, message: str) -> None:
    with scripted(status, body) as url, pytest.raises(QuestionFailed, match=message):
        list(answer(url, "?", None))


def test_nobody_answers() -> None:
    with pytest.raises(QuestionFailed, match="refused"):
        list(answer("http://127.0.0.1:1", "?", None))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


def test_without_a_terminal_the_server_stops(folder: Path) -> None:
    ran = subprocess.run(
        [*COMMAND, str(folder), *ASKING, "--api-key", "k"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("> a b\n")
    assert "Ready: http://127.0.0.1:" in ran.stderr
    assert "Ctrl-C" not in ran.stderr


def test_at_a_terminal_it_stays_until_ctrl_c(folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, str(folder), *ASKING], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    with os.fdopen(ours, "rb", buffering=0) as screen:
        while b"curl http://127.0.0.1:" not in shown:
            shown += screen.read(4096)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert b"> a b" in shown


def test_a_key_file_holds_no_key_to_ask_with(folder: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [*COMMAND, str(folder), *ASKING, "--api-key-file", str(tmp_path / "keys.toml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 2
    assert "no key to ask with" in ran.stderr
