"""JSON lines with one session each: `requests` with `t` in seconds since the session began, `in` and `out` in tokens.

`runs` are [[first id, count], …] of units of `block_size` tokens, whose ids are the session's own. This is the format
of kv-cache-tester's coding sessions (https://github.com/callanjfox/kv-cache-tester), run-length coded.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from looseleaf.replay.readers.builder import TableBuilder
from looseleaf.replay.readers.head import Head
from looseleaf.replay.readers.source import lines_of
from looseleaf.replay.readers.token_ids import Contradiction, TokenIds, chain


class SessionRequest(msgspec.Struct):
    start: float = msgspec.field(name="t")
    prompt_tokens: int = msgspec.field(name="in")
    output_tokens: int = msgspec.field(name="out")
    runs: list[tuple[int, int]] = []


class SessionLine(msgspec.Struct):
    id: int | str
    block_size: int
    requests: list[SessionRequest]
    start: float = 0.0
    client: int | str = ""


class Sessions:
    format = "sessions"

    def recognises(self, head: Head) -> bool:
        if head.record:
            return {"id", "block_size", "requests"} <= head.record.keys()
        return head.text.startswith(b"{") and all(key in head.first_line for key in (b'"block_size"', b'"requests"'))

    def read(self, path: Path, table: TableBuilder) -> None:
        decoder = msgspec.json.Decoder(SessionLine)
        tokens = TokenIds()
        for number, line in lines_of(path):
            try:
                session = decoder.decode(line)
                base = _first_unit(session, table, tokens)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                table.bad(number, f"not a session: {error}")
                continue
            except Contradiction as error:
                table.bad(number, str(error), len(session.requests))
                continue
            for request in session.requests:
                runs = ((base + first, count) for first, count in request.runs)
                try:
                    prompt = chain(runs, session.block_size, max(request.prompt_tokens, 0), tokens)
                except Contradiction as error:
                    table.bad(number, str(error))
                    continue
                table.add(
                    number,
                    session.start + request.start,
                    request.prompt_tokens,
                    request.output_tokens,
                    prompt,
                    tenant=str(session.client),
                    session=str(session.id),
                )
        table.notes.append("In the file all sessions begin at once; a request's line is its session's.")


def _first_unit(session: SessionLine, table: TableBuilder, tokens: TokenIds) -> int:
    """What to add to the session's unit ids to make them the trace's own. Raises `Contradiction`."""
    table.unit = table.unit or session.block_size
    if session.block_size != table.unit or session.block_size < 1:
        raise Contradiction(f"its unit is {session.block_size} tokens, but {table.unit} in the lines before")
    runs = [run for request in session.requests for run in request.runs]
    if any(first < 0 or count < 1 for first, count in runs):
        raise Contradiction("a run of unit ids is negative or empty")
    least = min((first for first, _ in runs), default=0)
    most = max((first + count for first, count in runs), default=0)
    return tokens.reserve((most - least) * session.block_size) // session.block_size - least
