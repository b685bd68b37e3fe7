"""`looseleaf serve --ask`: a server is asked something as soon as it answers, over HTTP as by any client."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from looseleaf.cli.consoles import write
from looseleaf.errors import LooseleafError

_SECONDS = 120
_MAX_TOKENS = 128


class QuestionFailed(LooseleafError):
    """A running server did not answer as it should."""


class FirstQuestion:
    def __init__(self, text: str, key: str | None, *, stay: bool) -> None:
        """`stay`: leave the server running after the answer; else tell this process, which is the server, to stop."""
        self._text = text
        self._key = key
        self._stay = stay
        self._failure: Exception | None = None

    def ask(self, url: str) -> None:
        """Returns at once: the answer is printed by a thread."""
        threading.Thread(target=self._run, args=(url,), name="first-question", daemon=True).start()

    def check(self) -> None:
        """Once the server has ended: raises what went wrong."""
        if self._failure is not None:
            raise self._failure

    def _run(self, url: str) -> None:
        try:
            write(f"> {self._text}\n")
            for piece in answer(url, self._text, self._key):
                write(piece)
            write("\n")
        except Exception as error:
            self._failure = error
        if self._failure is None and self._stay:
            how = _how_to_ask(url, with_key=self._key is not None)
            sys.stderr.write(f"\nAsk it yourself; Ctrl-C stops the server.\n{how}\n")
            sys.stderr.flush()
        else:
            os.kill(os.getpid(), signal.SIGTERM)


def answer(url: str, question: str, key: str | None) -> Iterator[str]:
    """The pieces of a chat's answer as they come. Raises `QuestionFailed`."""
    parts = urlsplit(url)
    body = {
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "temperature": 0,
        "max_completion_tokens": _MAX_TOKENS,
    }
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_SECONDS)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise QuestionFailed(f"The server answered {response.status}: {_message(response.read())}")
        yield from _pieces(response)
    except (OSError, http.client.HTTPException) as error:
        raise QuestionFailed(f"The server did not answer: {error or type(error).__name__}.") from error
    finally:
        connection.close()


def _pieces(response: http.client.HTTPResponse) -> Iterator[str]:
    complete = False
    for line in response:
        if line.strip() == b"data: [DONE]":
            complete = True
        if complete or not line.startswith(b"data: "):
            continue
        event: dict[str, Any] = json.loads(line[6:])
        if "error" in event:
            raise QuestionFailed(f"The answer broke off: {event['error'].get('message')}")
        for choice in event["choices"]:
            yield choice["delta"].get("content") or ""
    if not complete:
        raise QuestionFailed("The answer broke off.")


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


def _how_to_ask(url: str, *, with_key: bool) -> str:
    key = " -H 'Authorization: Bearer KEY'" if with_key else ""
    body = '{"messages": [{"role": "user", "content": "Why is the sky blue?"}]}'
    return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"


def someone_watches() -> bool:
    """Whether there is a person at a terminal who can stop the server, as far as one can tell."""
    return sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI")
