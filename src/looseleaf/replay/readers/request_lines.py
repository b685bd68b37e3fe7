"""JSON lines with one request each: `timestamp` in milliseconds, `input_length` and `output_length` in tokens.

This is the format of Mooncake's traces (https://github.com/kvcache-ai/Mooncake), where `hash_ids` name the prompt's
units of 512 tokens, each together with all before it. Others say the same in other ways: `hash_runs` are
[[first id, count], …] of units of `block_size` tokens, numbered densely; `segments` are [[id, tokens], …], the pieces
that a prompt is put together from, in any order.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from looseleaf.replay.readers.builder import TableBuilder
from looseleaf.replay.readers.head import Head
from looseleaf.replay.readers.source import lines_of
from looseleaf.replay.readers.token_ids import PRIVATE, Contradiction, TokenIds, chain, merged
from looseleaf.replay.trace import Runs

UNIT = 512
Id = int | str


class RequestLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    block_size: int | None = None
    hash_ids: list[Id] | None = None
    hash_runs: list[tuple[int, int]] | None = None
    segments: list[tuple[Id, int]] | None = None
    session: Id = ""
    client: Id = ""
    tenant: Id = ""
    priority: int = 0
    num_samples: int = 1


class RequestLines:
    format = "mooncake"

    def recognises(self, head: Head) -> bool:
        return {"timestamp", "input_length", "output_length"} <= head.record.keys()

    def read(self, path: Path, table: TableBuilder) -> None:
        decoder = msgspec.json.Decoder(RequestLine)
        tokens = TokenIds()
        for number, line in lines_of(path):
            try:
                request = decoder.decode(line)
                runs = runs_of(request, table, tokens)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                table.bad(number, f"not a request: {error}")
                continue
            except Contradiction as error:
                table.bad(number, str(error))
                continue
            table.add(
                number,
                request.timestamp / 1000,
                request.input_length,
                request.output_length,
                runs,
                tenant=str(request.tenant if request.tenant != "" else request.client),
                priority=request.priority,
                session=str(request.session),
                num_samples=request.num_samples,
            )
        if tokens.way == "segments":
            table.notes.append("Prompts are put together from pieces; only what they begin with alike is reuse here.")


def runs_of(request: RequestLine, table: TableBuilder, tokens: TokenIds) -> Runs | None:
    """Raises `Contradiction`."""
    if request.input_length < 1:
        return None  # refused for that
    for way in ("segments", "hash_runs", "hash_ids"):
        if getattr(request, way) is not None:
            tokens.claim(way)
    if request.segments is not None:
        return of_segments(request.segments, request.input_length, tokens)
    if request.hash_ids is None and request.hash_runs is None:
        return None
    unit = request.block_size or UNIT
    table.unit = table.unit or unit
    if unit != table.unit or unit < 1:
        raise Contradiction(f"its unit is {unit} tokens, but {table.unit} in the lines before")
    if request.hash_runs is not None:
        for first, count in request.hash_runs:
            if first < 0 or count < 1 or (first + count) * unit > PRIVATE:
                raise Contradiction(f"a run of unit ids is negative, empty, or above {PRIVATE // unit:,}")
        return chain(request.hash_runs, unit, request.input_length, tokens)
    ids = ((tokens.first_of(each, unit) // unit, 1) for each in request.hash_ids or ())
    return chain(ids, unit, request.input_length, tokens)


def of_segments(segments: list[tuple[Id, int]], prompt_tokens: int, tokens: TokenIds) -> Runs | None:
    """Pieces one after the other; what the prompt has besides is taken to stand at its end, and shares nothing."""
    if any(count < 0 for _, count in segments):
        raise Contradiction("a segment has fewer than 0 tokens")
    rest = prompt_tokens - sum(count for _, count in segments)
    if rest < 0:
        raise Contradiction("the segments have more tokens than the prompt")
    runs = list(merged((tokens.first_of(each, each[1]), each[1]) for each in segments if each[1]))
    if rest:
        runs.append(tokens.private(rest))
    return tuple(runs) if runs else None
