"""Programs that others write: chat templates, schemas, regular expressions, grammars. None runs away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from server.faults.faulty_server import FaultyServer
from server.faults.load import CHAT, COMPLETIONS
from server.faults.raw_http import ask, put_together

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8, "temperature": 0}
MEMORY = 512 << 20


def nested(depth: int, width: int) -> dict[str, Any]:
    """Of which a naive reader makes width ** depth."""
    definitions: dict[str, Any] = {
        f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * width} for level in range(depth)
    }
    return {"$defs": definitions | {f"d{depth}": {"type": "integer"}}, "$ref": "#/$defs/d0"}


def permuted(count: int) -> dict[str, Any]:
    """All of many alternatives of everything at once."""
    one = {"anyOf": [{"properties": {f"p{i}": {"type": kind}}} for i in range(count) for kind in ("integer", "string")]}
    return {"type": "object", "allOf": [one] * count}


SCHEMAS: dict[str, Any] = {
    "references that multiply": nested(20, 10),
    "a circle": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "all of many": permuted(16),
    "a long array": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9, "maxItems": 10**9},
    "arrays in arrays": {
        "type": "array",
        "minItems": 1000,
        "maxItems": 2000,
        "items": {"type": "array", "minItems": 1000, "maxItems": 2000, "items": {"type": "string", "maxLength": 1000}},
    },
    "a long text": {"type": "string", "minLength": 10**8, "maxLength": 10**9},
    "a pattern": {"type": "string", "pattern": "^((a|b){1,1000}(c|d){1,1000}){1,1000}$"},
    "many fields": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(8000)}},
    "many values": {"enum": [f"value {i}" for i in range(20_000)]},
    "huge bounds": {"type": "integer", "minimum": -(10**400), "maximum": 10**400},
    "odd multiples": {"type": "number", "multipleOf": 1e-300, "minimum": 1e-300, "maximum": 1e300},
    "another machine": {"$ref": "http://127.0.0.1:1/schema.json"},
    "a file": {"$ref": "file:///etc/passwd"},
}
REGEXES = {
    "nested counts": "((a{1,1000}){1,1000}){1,1000}",
    "exponential": "(a|a)*b" * 200,
    "lookback of a thousand": "(a|b)*a(a|b){1000}",
    "huge count": "a{1000000000}",
    "all letters": "[\\w\\s\\S]{1,5000}x[^\\w]{1,5000}",
    "unclosed": "(" * 5000,
    "deep": "(" * 5000 + "a" + ")" * 5000,
}
GRAMMARS = {
    "left recursion": 'start: start start | start | ""',
    "many rules": "start: r0\n" + "\n".join(f'r{i}: r{i + 1} r{i + 1} | "x"' for i in range(2000)) + '\nr2000: "y"',
    "ambiguous": 'start: s\ns: s s s | s s | "a" | ',
    "no grammar": "}{" * 1000,
}
PROGRAMS = {
    **{f"schema: {name}": {"json": schema} for name, schema in SCHEMAS.items()},
    **{f"regex: {name}": {"regex": regex} for name, regex in REGEXES.items()},
    **{f"grammar: {name}": {"grammar": grammar} for name, grammar in GRAMMARS.items()},
}


@pytest.mark.parametrize("mode", ["loop", "attributes", "method", "format", "size", "recursion"])
def test_a_chat_template_that_loops_or_reaches_out(
    mode: str, server: FaultyServer, counted: Callable[..., None]
) -> None:
    async def body() -> None:
        before = server.front_bytes
        task = asyncio.create_task(ask(server.url, CHAT, HELLO | {"chat_template_kwargs": {"mode": mode}}))
        beside = 0
        while not task.done():
            assert (await ask(server.url, "/health", method="GET")).status == 200
            beside += 1
        answer = await task
        if answer.status == 200:  # what the sandbox shows as undefined prints as nothing
            assert mode in ("attributes", "method", "format")
        else:
            assert (answer.status, answer.code) == (400, "invalid_messages")
        assert b"function" not in answer.body
        assert b"builtins" not in answer.body
        if mode == "loop":
            assert beside > 1, "nobody was answered while the template ran"
        assert server.front_bytes - before < MEMORY
        assert put_together(await ask(server.url, CHAT, HELLO))
        counted(chat_templates_stopped=1)

    asyncio.run(body())


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_an_output_must_follow_can_explode(name: str, server: FaultyServer, counted: Callable[..., None]) -> None:
    async def body() -> None:
        engine = server.engine()
        assert engine is not None
        before = engine.memory_info().rss, server.front_bytes
        request = {"prompt": [1], "max_tokens": 8, "structured_outputs": PROGRAMS[name]}
        async with asyncio.timeout(60):
            answer = await ask(server.url, COMPLETIONS, request)
        assert answer.status in (200, 400), answer.body[:300]
        if answer.status == 400:
            assert answer.code in ("invalid_grammar", "invalid_value"), answer.body[:300]
            assert len(answer.body) < 4000
        assert engine.memory_info().rss - before[0] < MEMORY
        assert server.front_bytes - before[1] < MEMORY
        assert (await ask(server.url, COMPLETIONS, {"prompt": [1], "max_tokens": 2})).status == 200
        counted(**{"programs_refused" if answer.status == 400 else "programs_bounded": 1})

    asyncio.run(body())


def test_all_of_them_at_once(server: FaultyServer) -> None:
    async def body() -> None:
        restarts = await server.metric("looseleaf_engine_restarts_total")
        requests = [{"prompt": [1], "max_tokens": 8, "structured_outputs": each} for each in PROGRAMS.values()]
        answers = await asyncio.gather(*(ask(server.url, COMPLETIONS, each) for each in requests))
        assert {answer.status for answer in answers} <= {200, 400}
        assert await server.metric("looseleaf_engine_restarts_total") == restarts
        assert json.loads((await ask(server.url, "/health/ready", method="GET")).body) == {"status": "ready"}

    asyncio.run(body())
