"""Logs of an OpenAI-style API: JSON lines with a request, or its response, or both, with or without texts.

Each line may hold the request at its top or under `request` or `body`, the response at its top or under `response`,
and the lengths under `usage`. Where there are texts and a tokenizer, they give lengths and common beginnings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from looseleaf.replay.readers.builder import TableBuilder
from looseleaf.replay.readers.head import Head
from looseleaf.replay.readers.prompt_tree import PromptTree
from looseleaf.replay.readers.source import lines_of
from looseleaf.replay.readers.token_ids import Contradiction, TokenIds
from looseleaf.replay.trace import Runs, Tokenize

TIMES = ("timestamp", "time", "ts", "arrival", "start_time", "request_time", "created_at", "created")
TENANTS = ("tenant", "user", "organization", "organization_id", "api_key_id", "client")
SESSIONS = ("session", "session_id", "conversation_id")
Record = Mapping[str, Any]


class RequestLog:
    format = "openai-log"

    def __init__(self, tokenizer: Tokenize | None) -> None:
        self._tokenizer = tokenizer
        self._tree = PromptTree(TokenIds())
        self._num_untimed = self._num_unread = 0

    def recognises(self, head: Head) -> bool:
        if not head.record:
            return False
        request, response = _parts(head.record)
        keys = request.keys() | response.keys() | head.record.keys()
        return bool(keys & {"usage", "messages", "prompt"} or "prompt_tokens" in keys or "input_tokens" in keys)

    def read(self, path: Path, table: TableBuilder) -> None:
        for number, line in lines_of(path):
            try:
                record = msgspec.json.decode(line)
                if not isinstance(record, dict):
                    raise Contradiction("no JSON object")
                self._read(number, record, table)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                table.bad(number, f"no JSON: {error}")
            except Contradiction as error:
                table.bad(number, str(error))
        if self._num_untimed:
            table.notes.append(f"{self._num_untimed:,} requests have no time and arrive at the beginning.")
        if self._num_unread:
            table.notes.append(f"{self._num_unread:,} prompts have texts: --tokenizer would show which begin alike.")

    def _read(self, number: int, record: Record, table: TableBuilder) -> None:
        request, response = _parts(record)
        sources = (record, request, response)
        samples = _count(request, "n") or 1
        prompt_tokens, runs = self._prompt(request, sources)
        output_tokens = self._output(response, request, sources, samples)
        arrival = _time(sources)
        if arrival is None:
            self._num_untimed += 1
        table.add(
            number,
            arrival or 0.0,
            prompt_tokens,
            output_tokens,
            runs,
            tenant=_text(sources, TENANTS),
            session=_text(sources, SESSIONS),
            priority=_count(request, "priority") or 0,
            num_samples=samples,
        )

    def _prompt(self, request: Record, sources: tuple[Record, ...]) -> tuple[int, Runs | None]:
        pieces = list(_prompt_pieces(request))
        if pieces and self._tokenizer is not None:
            tokens = [token for piece in self._tokenizer(pieces) for token in piece]
            return len(tokens), self._tree.runs(tokens) if tokens else None
        length = _usage(sources, ("prompt_tokens", "input_tokens"))
        if length is None:
            raise Contradiction("neither a number of prompt tokens nor a text with a tokenizer")
        self._num_unread += bool(pieces)
        return length, None

    def _output(self, response: Record, request: Record, sources: tuple[Record, ...], samples: int) -> int:
        """Tokens of each sample: the usage counts those of all."""
        length = _usage(sources, ("completion_tokens", "output_tokens"))
        if length is not None:
            return -(-length // samples)
        texts = list(_answers(response))
        if texts and self._tokenizer is not None:
            return max(map(len, self._tokenizer(texts)))
        most = _count(request, "max_completion_tokens") or _count(request, "max_tokens")
        if most is None:
            raise Contradiction("no number of output tokens")
        return most


def _parts(record: Record) -> tuple[Record, Record]:
    """The request and the response."""
    request = _object(record, "request") or record
    request = _object(request, "body") or request
    response = _object(record, "response") or record
    return request, _object(response, "body") or response


def _object(record: Record, key: str) -> Record | None:
    value = record.get(key)
    return value if isinstance(value, dict) else None


def _count(record: Record, key: str) -> int | None:
    value = record.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31 else None


def _usage(sources: tuple[Record, ...], names: tuple[str, ...]) -> int | None:
    usages = [usage for source in sources if (usage := _object(source, "usage"))]
    found = (_count(source, name) for source in (*usages, *sources) for name in names)
    return next((value for value in found if value is not None), None)


def _text(sources: tuple[Record, ...], names: tuple[str, ...]) -> str:
    found = (source.get(name) for source in sources for name in names)
    return next((str(value) for value in found if isinstance(value, str | int) and value != ""), "")


def _time(sources: tuple[Record, ...]) -> float | None:
    """Seconds; None where there is no time. Raises `Contradiction` for what is none."""
    value = next((source[name] for source in sources for name in TIMES if source.get(name) is not None), None)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        pass
    try:
        date = datetime.fromisoformat(value)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        raise Contradiction("the arrival is no time") from None


def _prompt_pieces(request: Record) -> Iterator[str]:
    """The texts of a prompt, one a message: a message's tokens do not depend on the next."""
    prompt = request.get("prompt")
    if isinstance(prompt, str):
        yield prompt
    messages = request.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict):
            content = message.get("content")
            text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
            yield f"{message.get('role', '')}\n{text}\n"


def _answers(response: Record) -> Iterator[str]:
    choices = response.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            text = (_object(choice, "message") or {}).get("content", choice.get("text"))
            if isinstance(text, str):
                yield text
