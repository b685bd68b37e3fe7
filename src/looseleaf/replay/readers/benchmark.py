"""What `vllm bench serve --save-result --save-detailed` writes: one JSON object of lists with a place per request."""

from __future__ import annotations

from pathlib import Path

import msgspec

from looseleaf.replay.errors import InvalidTrace
from looseleaf.replay.readers.builder import TableBuilder
from looseleaf.replay.readers.head import Head
from looseleaf.replay.readers.source import open_source


class Result(msgspec.Struct):
    input_lens: list[int]
    output_lens: list[int]
    start_times: list[float | None] | None = None
    errors: list[str | None] | None = None


class Benchmark:
    format = "vllm-bench"

    def recognises(self, head: Head) -> bool:
        return head.text.startswith(b"{") and b'"input_lens"' in head.data and b'"output_lens"' in head.data

    def read(self, path: Path, table: TableBuilder) -> None:
        with open_source(path) as source:
            data = source.read()
        try:
            result = msgspec.json.decode(data, type=Result)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidTrace(f"{path} is no result of a benchmark: {error}.") from error
        count = len(result.input_lens)
        starts = result.start_times or [0.0] * count
        errors = result.errors or [""] * count
        if not len(starts) == len(errors) == len(result.output_lens) == count:
            raise InvalidTrace(f"{path} has {count} input_lens but {len(result.output_lens)} output_lens.")
        first = min((start for start in starts if start is not None), default=0.0)
        rows = zip(starts, result.input_lens, result.output_lens, errors, strict=True)
        for number, (start, prompt_tokens, output_tokens, failure) in enumerate(rows, 1):
            if failure or start is None:
                table.bad(number, "a request that failed")
            else:
                table.add(number, start - first, prompt_tokens, output_tokens)
        if result.start_times is None:
            table.notes.append("The file has no start_times: all requests arrive at once.")
        table.notes.append("Lines are counted in requests.")
