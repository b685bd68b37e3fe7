"""ShareGPT: a JSON array of conversations, `[{"id": …, "conversations": [{"from": "human", "value": …}, …]}, …]`.

It has texts and no times: a tokenizer gives the lengths, and all requests arrive at once.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from looseleaf.replay.errors import InvalidTrace
from looseleaf.replay.readers.builder import TableBuilder
from looseleaf.replay.readers.head import Head
from looseleaf.replay.readers.prompt_tree import PromptTree
from looseleaf.replay.readers.source import open_source
from looseleaf.replay.readers.token_ids import Contradiction, TokenIds
from looseleaf.replay.trace import Tokenize

CHUNK = 1 << 20
LONGEST_ELEMENT = 1 << 28
_DECODER = json.JSONDecoder()


class ShareGpt:
    """`turns`: "first" makes a request of the first question and answer of each conversation, as usual in
    benchmarks; "all" one of each answer, whose prompt is everything before it."""

    def __init__(self, tokenizer: Tokenize | None, turns: Literal["first", "all"] = "first") -> None:
        self.format = "sharegpt" if turns == "first" else "sharegpt-turns"
        self._tokenizer = tokenizer
        self._turns = turns

    def recognises(self, head: Head) -> bool:
        return head.text.startswith(b"[") and b'"conversations"' in head.data

    def read(self, path: Path, table: TableBuilder) -> None:
        if self._tokenizer is None:
            raise InvalidTrace(
                f"{path} has texts, whose lengths in tokens depend on the model.", hint="Name one with --tokenizer."
            )
        tree = PromptTree(TokenIds())
        for number, element in elements_of(path):
            turns = _turns_of(element)
            if turns is None:
                table.bad(number, "no conversation")
                continue
            if len(turns) < 2 or not any(speaker == "gpt" for speaker, _ in turns[1:]):
                table.bad(number, "a conversation without an answer")
                continue
            lengths = self._tokenizer([text for _, text in turns])
            prompt: list[int] = []
            for (speaker, _), tokens in zip(turns, lengths, strict=True):
                if speaker == "gpt" and prompt:
                    try:
                        runs = tree.runs(prompt)
                    except Contradiction as error:
                        table.bad(number, str(error))
                        break
                    session = str(element.get("id", number)) if self._turns == "all" else ""
                    table.add(number, 0.0, len(prompt), len(tokens), runs, session=session)
                    if self._turns == "first":
                        break
                prompt += tokens
        table.notes.append("The file has no times: all requests arrive at once. Lines are counted in conversations.")


def _turns_of(element: Any) -> list[tuple[str, str]] | None:
    """(speaker, text), where the speaker of an answer is "gpt"; None where it is no conversation."""
    turns = element.get("conversations") if isinstance(element, dict) else None
    if not isinstance(turns, list):
        return None
    found = []
    for turn in turns:
        if not isinstance(turn, dict) or not isinstance(turn.get("value"), str):
            return None
        speaker = turn.get("from")
        found.append(("gpt" if speaker in {"gpt", "chatgpt", "bing", "bard", "assistant"} else "human", turn["value"]))
    return found


def elements_of(path: Path) -> Iterator[tuple[int, Any]]:
    """The elements of the JSON array in a file, counted from 1, read piece by piece. Raises `InvalidTrace`."""
    with open_source(path) as source:
        reader = io.TextIOWrapper(source, "utf-8", errors="replace")
        buffer = reader.read(CHUNK).removeprefix("\ufeff").lstrip()
        if not buffer.startswith("["):
            raise InvalidTrace(f"{path} is no JSON array.")
        buffer, number, wanted = buffer[1:], 0, CHUNK
        while True:
            buffer = buffer.lstrip(" \t\r\n,")
            if buffer.startswith("]"):
                return
            element: Any = None
            try:
                element, end = _DECODER.raw_decode(buffer)
            except (ValueError, RecursionError) as error:
                more = reader.read(wanted) if len(buffer) < LONGEST_ELEMENT else ""
                if not more:
                    what = "ends early" if len(buffer) < LONGEST_ELEMENT else "is too long"
                    raise InvalidTrace(f"Element {number + 1} of {path} is no JSON, or {what}: {error}.") from error
                buffer, wanted = buffer + more, wanted * 2
                continue
            number, wanted, buffer = number + 1, CHUNK, buffer[end:]
            yield number, element
