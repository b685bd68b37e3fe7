"""The smaller endpoints, and what the front does with bodies and readers of every kind."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

import looseleaf
from server.served import MODEL, Served


def test_models_are_listed_and_retrieved(server: Served) -> None:
    client = server.openai()
    assert [model.id for model in client.models.list()] == [MODEL, "tiny-alias"]
    assert client.models.retrieve("tiny-alias").created == 1
    with server.http() as http:
        assert http.get("/v1/models/no/such").json()["error"]["code"] == "model_not_found"


def test_tokens_make_the_round_trip(server: Served) -> None:
    with server.http() as http:
        made = http.post("/tokenize", json={"model": MODEL, "prompt": "né", "return_token_strs": True}).json()
        assert made["count"] == len(made["tokens"]) == 3
        assert made["token_strs"] == ["n", "bytes:\\xc3", "bytes:\\xa9"]
        assert made["max_model_len"] == server.client.info.max_model_len
        assert http.post("/detokenize", json={"tokens": made["tokens"]}).json() == {"prompt": "né"}
        chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "x"}]}).json()
        assert bytes(http.post("/detokenize", json={"tokens": chat["tokens"]}).json()["prompt"], "utf-8") == (
            b"user: x\nassistant:"
        )
        assert http.post("/detokenize", json={"tokens": [99999]}).json()["error"]["param"] == "tokens"
        assert http.post("/tokenize", json={}).status_code == 400


def test_health_and_version(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with server.http() as http:
        assert http.get("/version").json() == {"version": looseleaf.__version__}
        assert http.get("/health/ready").status_code == 200
        monkeypatch.setattr(server.client, "state", "restarting")
        assert http.get("/health").status_code == 200
        ready = http.get("/health/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "restarting"})


def test_what_is_not_there_has_an_error_object_too(server: Served) -> None:
    with server.http() as http:
        for answer, status in ((http.get("/v2/none"), 404), (http.get("/v1/completions"), 405)):
            assert answer.status_code == status
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


NESTED = (
    b'{"messages": [{"role": "user", "content": "x"}],'
    b'"tools": [{"type": "function", "function": {"name": "f", "parameters":'
)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe{}",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"messages": [{"role": "user", "content": "\\udfff"}]}',
        b'{"\\ud800": 1}',
        b'{"prompt": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        NESTED + b'{"a":' * 200 + b"1" + b"}" * 200 + b"}}]}",
        b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"prompt": "a", "max_tokens": 1e400}',
        b'{"prompt": "a", "seed": 123456789012345678901234567890}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": [1e999]}',
        b'{"prompt": [-1], "tokens": [-1]}',
        b'{"tokens": [99999999999999999999]}',
        b'{"prompt": "a", "logit_bias": {"\\ud800": 1}}',
        b'{"prompt": "a", "logit_bias": {"1": NaN}}',
        b'{"prompt": "a", "structured_outputs": {"json": {"minimum": 1' + b"0" * 400 + b'}}, "max_tokens": 2000}',
        b'{"prompt": "a", "structured_outputs": {"regex": "(a{1000}){1000}"}, "max_tokens": 2}',
        b'{"prompt": "a", "structured_outputs": {"json": {"enum": ["\\ud800"]}}}',
    ],
)
def test_malformed_bodies_are_refused(server: Served, path: str, body: bytes) -> None:
    with server.http() as http:
        answer = http.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert len(answer.content) < 2000


def test_json_must_say_that_it_is(server: Served) -> None:
    with server.http() as http:
        answer = http.post("/v1/completions", content=b'{"prompt": "a"}', headers={"content-type": "text/plain"})
    assert answer.status_code == 400


def soon(condition: Callable[[], bool]) -> bool:
    """Whether it comes true within some seconds."""
    end = time.monotonic() + 20
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["hello", ["a", "b", "c"]])
def test_a_client_that_goes_ends_its_requests(server: Served, stream: bool, prompt: object) -> None:
    fields = {"model": MODEL, "prompt": prompt, "max_tokens": 480, "stream": stream, "ignore_eos": True, "n": 2}
    body = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    before = len(server.client.requests)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        if stream:
            assert b"200 OK" in connection.recv(100)
        else:
            assert soon(lambda: len(server.client.requests) > before)
    assert soon(lambda: server.client.in_flight() == 0)
    server.engine.memory.audit()


def test_the_front_needs_no_torch() -> None:
    code = "import sys, looseleaf.server.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
