"""Whatever is in a body: an answer that says what is wrong with it, soon, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from server.faults.faulty_server import FaultyServer
from server.faults.load import CHAT, COMPLETIONS
from server.faults.raw_http import ask, connected, head, message, read_answer

TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
LARGEST = 4 << 20
MANY = LARGEST // 8
CHAT_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
MALFORMED = [
    b"",
    b"{",
    b"}",
    b"nul",
    b"[]",
    b'"text"',
    b"\x00" * 100,
    b"\xff\xfe{\x00",
    b'{"prompt": "\xff\xfe"}',
    b'{"prompt": "\xed\xa0\x80"}',
    b'{"prompt": "a" "b"}',
    b'{"prompt": "a", "prompt": [}',
    b"{'prompt': 'a'}",
    b'{"prompt": "a\nb"}',
    b"\xef\xbb\xbf" * 3 + b"{}",
    b"<xml/>",
]
NUMBERS = (
    b"1e400",
    b"-1e400",
    b"1" + b"0" * 400,
    b"1" + b"0" * 5000,
    b"-0.0e-999",
    b"NaN",
    b"-Infinity",
    b"1e-400",
    b"9" * 19,
)
NUMERIC = (
    *("n", "best_of", "temperature", "top_p", "seed", "max_tokens", "logprobs", "presence_penalty", "top_k", "min_p"),
    *("repetition_penalty", "min_tokens", "priority", "beam_width", "length_penalty", "frequency_penalty"),
)
WRONG = (b"null", b"true", b'"1"', b"[]", b"{}", b"[[]]", b"[1]", b'{"a": 1}', b"1.5", b"-1", b'"\\ud800"')
HOLDERS = (
    b'{"prompt": [1], "max_tokens": 1, "logit_bias": {"1": %s}}',
    b'{"prompt": [%s], "max_tokens": 1}',
    b'{"prompt": [[%s]], "max_tokens": 1}',
    b'{"prompt": [1], "max_tokens": 1, "stop_token_ids": [%s]}',
    b'{"prompt": [1], "max_tokens": 1, "structured_outputs": {"json": {"maximum": %s}}}',
)


def many(item: bytes, count: int = MANY, between: bytes = b",") -> bytes:
    return between.join([item] * count)


def numbered(form: bytes, count: int) -> bytes:
    return b",".join(form % number for number in range(count))


LARGE = {
    "mixed prompt": (COMPLETIONS, b'{"prompt": [%s]}' % many(b'"a",1', MANY)),
    "prompt of floats": (COMPLETIONS, b'{"prompt": [%s]}' % many(b"1.5", MANY)),
    "prompt of lists": (COMPLETIONS, b'{"prompt": [%s]}' % many(b"[]", MANY)),
    "prompt of numbers": (COMPLETIONS, b'{"prompt": [%s]}' % many(b"1", 2 * MANY)),
    "prompt of text": (COMPLETIONS, b'{"prompt": "%s"}' % (b"a" * (8 * MANY - 100))),
    "many biases": (COMPLETIONS, b'{"prompt": "a", "logit_bias": {%s}}' % numbered(b'"%d":"x"', MANY // 2)),
    "many fields": (COMPLETIONS, b'{"prompt": "a", %s}' % numbered(b'"f%d":1', MANY // 2)),
    "many stop tokens": (COMPLETIONS, b'{"prompt": "a", "stop_token_ids": [%s]}' % many(b'"a"', MANY)),
    "many stop strings": (COMPLETIONS, b'{"prompt": "a", "stop": [%s]}' % many(b"1", MANY)),
    "deep": (COMPLETIONS, b'{"prompt": ' + b"[" * (8 * MANY - 100)),
    "deep objects": (CHAT, b'{"a":' * MANY),
    "many messages": (CHAT, b'{"messages": [%s]}' % many(b'{"role":"user","content":[{},{}],"x":1}', MANY // 8)),
    "many parts": (
        CHAT,
        b'{"messages":[{"role":"user","content":[%s]}]}' % many(b'{"type":"text","text":"a"}', 90_000),
    ),
    "many variables": (
        CHAT,
        b'{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{%s}}' % numbered(b'"v%d":[]', MANY // 2),
    ),
    "many choices": (COMPLETIONS, b'{"prompt": "a", "structured_outputs": {"choice": [%s]}}' % many(b'"a"', MANY)),
    "large regex": (COMPLETIONS, b'{"prompt": "a", "structured_outputs": {"regex": "%s"}}' % (b"(a|b)*" * (MANY // 2))),
    "large grammar": (
        COMPLETIONS,
        b'{"prompt": "a", "structured_outputs": {"grammar": "start: %s"}}' % many(b'\\"a\\"', MANY // 2, b" "),
    ),
    "large schema": (
        COMPLETIONS,
        b'{"prompt": "a", "structured_outputs": {"json": {"properties": {%s}}}}' % numbered(b'"p%d":{}', MANY // 3),
    ),
    "many tokens": (DETOKENIZE, b'{"tokens": [%s]}' % many(b'"a"', MANY)),
    "text to tokenise": (TOKENIZE, b'{"prompt": "%s"}' % (b"a b" * 100_000)),
}


def test_what_is_no_json_or_no_object(server: FaultyServer, counted: Callable[..., None]) -> None:
    async def body() -> None:
        for path in (COMPLETIONS, CHAT, TOKENIZE, DETOKENIZE):
            for content in MALFORMED:
                answer = await ask(server.url, path, content)
                assert answer.status == 400, content
                assert answer.headers["content-type"] == "application/json"
                assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        counted(malformed_bodies_refused=4 * len(MALFORMED))

    asyncio.run(body())


def test_wrong_types_and_huge_numbers(server: FaultyServer, counted: Callable[..., None]) -> None:
    async def body() -> None:
        refused = 0
        for value in (*NUMBERS, *WRONG):
            bodies = [b'{"prompt": [1], "max_tokens": 1, "%s": %s}' % (name.encode(), value) for name in NUMERIC]
            for content in [*bodies, *(holder % value for holder in HOLDERS)]:
                answer = await ask(server.url, COMPLETIONS, content)
                assert answer.status in (200, 400), (content, answer.body)
                if answer.status == 400:
                    assert json.loads(answer.body)["error"]["message"], content
                    assert len(answer.body) < 4000
                    refused += 1
        counted(bodies_with_wrong_or_huge_values_refused=refused)

    asyncio.run(body())


@pytest.mark.parametrize("name", LARGE)
def test_large_bodies_cost_what_their_size_does(name: str, server: FaultyServer, counted: Callable[..., None]) -> None:
    path, content = LARGE[name]
    content = content if len(content) <= LARGEST else content[:LARGEST]
    before = server.front_bytes

    async def body() -> None:
        # What took a finding per item, or worse than linear time, took minutes and gigabytes.
        async with asyncio.timeout(20):
            answer = await ask(server.url, path, content)
        assert answer.status == (200 if path == TOKENIZE else 400), answer.body[:300]
        assert path == TOKENIZE or len(answer.body) < 4000
        assert server.front_bytes - before < 256 << 20
        counted(large_bodies=1)

    asyncio.run(body())


def test_a_hundred_megabytes(server: FaultyServer, counted: Callable[..., None]) -> None:
    size = 100 << 20
    before = server.front_bytes

    async def body() -> None:
        async with connected(server.url) as connection:  # said beforehand
            await connection.send(head(COMPLETIONS, size))
            answer = await read_answer(connection.reader)
            assert (answer.status, answer.code) == (413, "body_too_large")
        async with connected(server.url) as connection:  # in pieces without end
            await connection.send(head(COMPLETIONS, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
            sending = asyncio.create_task(pieces(connection.send, size))
            answer = await read_answer(connection.reader)
            assert (answer.status, answer.code) == (413, "body_too_large")
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        async with connected(server.url) as connection:  # never asked for: a path that reads no body
            await connection.send(head("/health", size))
            sending = asyncio.create_task(pieces(connection.send, size))
            assert (await read_answer(connection.reader)).status in (200, 405)
            await asyncio.gather(sending, return_exceptions=True)
        assert server.front_bytes - before < 64 << 20
        counted(bodies_of_100_MB=3)

    async def pieces(send: Callable[[bytes], Any], size: int) -> None:
        piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        for _ in range(size // 65536):
            await send(piece)

    asyncio.run(body())


def test_others_are_answered_meanwhile(server: FaultyServer) -> None:
    async def body() -> None:
        hostile = [ask(server.url, path, content[:LARGEST]) for path, content in LARGE.values()]
        friendly = [ask(server.url, CHAT, CHAT_BODY) for _ in range(8)]
        answers = await asyncio.gather(*hostile, *friendly)
        assert [each.status for each in answers[len(hostile) :]] == [200] * 8

    asyncio.run(body())


def test_what_is_large_and_right(server: FaultyServer) -> None:
    async def body() -> None:
        async with connected(server.url) as connection:
            text = json.dumps({"prompt": "ü" * 50_000}).encode()
            await connection.send(message(TOKENIZE, text))
            answer = await read_answer(connection.reader)
            assert json.loads(answer.body)["count"] == 100_000

    asyncio.run(body())
