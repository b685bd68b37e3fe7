"""Trace files: every format read as it is meant, and what is wrong with one named by line."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.errors import LooseleafError
from looseleaf.replay.errors import InvalidTrace
from looseleaf.replay.readers import builder, table
from looseleaf.replay.readers.parquet import write_parquet
from looseleaf.replay.readers.prompt_tree import PromptTree
from looseleaf.replay.readers.token_ids import PRIVATE, Contradiction, TokenIds, chain
from looseleaf.replay.trace import Trace, TraceRequest, read_trace

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(content, name)` → a file's path; what is no text is written as JSON lines."""

    def put(content: str | bytes | Sequence[Any], name: str = "trace") -> Path:
        if not isinstance(content, str | bytes):
            content = "\n".join(json.dumps(line) for line in content)
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return put


def lengths_of(trace: Trace) -> list[tuple[float, int, int]]:
    return [(round(r.arrival, 6), r.prompt_tokens, r.output_tokens) for r in trace.requests()]


def letters(texts: list[str]) -> list[list[int]]:
    """A token per character."""
    return [[ord(letter) for letter in text] for text in texts]


def request(**values: Any) -> dict[str, Any]:
    return {"timestamp": 0, "input_length": 20, "output_length": 5} | values


class TestRequestLines:
    def test_without_identity(self, write: Write) -> None:
        trace = read_trace(write([request(), request(timestamp=1500, client=7, session="s", priority=2)]))
        assert trace.origin.format == "mooncake"
        assert list(trace.requests()) == [
            TraceRequest(0.0, 20, 5, None),
            TraceRequest(1.5, 20, 5, None, tenant="7", priority=2, session="s"),
        ]

    def test_hash_ids_are_numbered_densely(self, write: Write) -> None:
        far = 2**60
        lines = [
            request(input_length=1100, hash_ids=[far, far + 1, "x"]),
            request(input_length=1024, hash_ids=[far, 9]),
        ]
        trace = read_trace(write(lines))
        assert trace.unit == 512
        assert [r.runs for r in trace.requests()] == [((0, 1100),), ((0, 512), (3 * 512, 512))]

    def test_hash_runs(self, write: Write) -> None:
        trace = read_trace(write([request(block_size=16, input_length=37, hash_runs=[[3, 2], [8, 1]])]))
        assert trace.unit == 16
        assert next(trace.requests()).runs == ((48, 32), (128, 5))

    def test_segments_stand_for_the_same_tokens_wherever_they_are(self, write: Write) -> None:
        lines = [request(segments=[[4, 8], [5, 6]]), request(segments=[[5, 6], [4, 8]])]
        first, second = (r.runs for r in read_trace(write(lines)).requests())
        assert first is not None
        assert second is not None
        assert (first[0], second[:2]) == ((0, 14), ((8, 6), (0, 8)))
        assert first[1][1] == second[2][1] == 6  # of 20: they share nothing
        assert first[1][0] != second[2][0]
        assert min(first[1][0], second[2][0]) >= PRIVATE


@pytest.mark.parametrize("segments", [[[1, 21]], [[1, -1]]])
def test_segments_that_cannot_be(write: Write, segments: list[list[int]]) -> None:
    with pytest.raises(InvalidTrace, match=r"1 of 2 requests .* segment.* first in line 2"):
        read_trace(write([request(), request(segments=segments)]))


def test_ids_of_a_session_are_its_own(write: Write) -> None:
    asks = [{"t": 0.5, "in": 150, "out": 3, "runs": [[1, 2]]}, {"t": 4.0, "in": 64, "out": 3, "runs": [[1, 1]]}]
    sessions = [{"id": name, "block_size": 64, "requests": asks} for name in "ab"]
    trace = read_trace(write(sessions))
    assert (trace.origin.format, trace.unit) == ("sessions", 64)
    runs = {(r.session, r.arrival): r.runs for r in trace.requests()}
    assert [at for _, at in runs] == [0.5, 0.5, 4.0, 4.0]
    a, b = (runs[name, 0.5] for name in "ab")
    assert a is not None
    assert b is not None
    assert (a[0], b[0]) == ((0, 128), (128, 128))
    assert a[1][0] != b[1][0]
    assert (runs["a", 4.0], runs["b", 4.0]) == (((0, 64),), ((128, 64),))


@pytest.mark.parametrize(
    ("content", "format", "known"),
    [
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n",
            "azure",
            [(0.0, 374, 44), (4.314579, 396, 109)],
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
            "2024-05-10 00:00:00.009930+00:00,2162,5\r\n\r\n2024-05-10 02:00:01.009930+02:00,2399,6\r\n",
            "azure",
            [(0.0, 2162, 5), (1.0, 2399, 6)],
        ),
        (
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
            "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n",
            "burstgpt",
            [(5.0, 472, 18), (45.0, 1087, 230)],
        ),
        (
            "arrived_at;num_prefill_tokens;num_decode_tokens\n0.25;10;20\n1;30;40",
            "csv",
            [(0.25, 10, 20), (1.0, 30, 40)],
        ),
        (
            json.dumps(
                {"date": "", "input_lens": [3, 4, 5], "output_lens": [5, 6, 7], "start_times": [101.0, 100.5, 102]},
                indent=1,
            ),
            "vllm-bench",
            [(0.0, 4, 6), (0.5, 3, 5), (1.5, 5, 7)],
        ),
    ],
)
def test_published_formats(write: Write, content: str, format: str, known: list[tuple[float, int, int]]) -> None:
    for packed in (content.encode(), gzip.compress(content.encode()), zstandard.compress(content.encode())):
        trace = read_trace(write(packed))
        assert trace.origin.format == format
        assert lengths_of(trace) == known


def test_any_csv_by_a_map_of_its_columns(write: Write) -> None:
    path = write('a,When,in,out,who\n"x\ny, z",1500,10,20,bob\nz,2500,30,40,"al, jr."\n')
    columns = {"arrival_ms": "when", "prompt": "IN", "output": "out", "tenant": "who"}
    requests = list(read_trace(path, columns=columns).requests())
    assert [(r.arrival, r.prompt_tokens, r.output_tokens, r.tenant) for r in requests] == [
        (1.5, 10, 20, "bob"),
        (2.5, 30, 40, "al, jr."),
    ]


def test_parquet_of_any_columns(tmp_path: Path) -> None:
    pl.DataFrame({"ts": [1.5, 2.5], "in": [10, 30], "out": [20, 40]}).write_parquet(tmp_path / "p")
    trace = read_trace(tmp_path / "p", columns={"arrival": "ts", "prompt": "in", "output": "out"})
    assert lengths_of(trace) == [(1.5, 10, 20), (2.5, 30, 40)]


CHATS = [
    {"id": "a", "conversations": [
        {"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"},
        {"from": "human", "value": "more"}, {"from": "gpt", "value": "yes"},
    ]},
    {"id": "b", "conversations": [{"from": "human", "value": "help"}, {"from": "gpt", "value": "ok!"}]},
]  # fmt: skip


class TestTexts:
    def test_first_turns(self, write: Write) -> None:
        trace = read_trace(write(json.dumps(CHATS, indent=2)), tokenizer=letters)
        assert lengths_of(trace) == [(0.0, 5, 2), (0.0, 4, 3)]
        first, second = (r.token_ids() for r in trace.requests())
        assert first is not None
        assert second is not None
        assert (first[:4] == second).tolist() == [True, True, True, False]

    def test_all_turns(self, write: Write) -> None:
        trace = read_trace(write(json.dumps(CHATS)), tokenizer=letters, format="sharegpt-turns")
        assert lengths_of(trace) == [(0.0, 5, 2), (0.0, 11, 3), (0.0, 4, 3)]
        first, second, _ = trace.requests()
        assert (first.runs, second.runs) == (((0, 5),), ((0, 11),))

    def test_pieces_of_a_large_array(self, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("looseleaf.replay.readers.sharegpt.CHUNK", 7)
        trace = read_trace(write(json.dumps(CHATS * 5)), tokenizer=letters)
        assert trace.num_requests == 10

    def test_need_a_tokenizer(self, write: Write) -> None:
        with pytest.raises(InvalidTrace, match="--tokenizer"):
            read_trace(write(json.dumps(CHATS)))


class TestRequestLogs:
    def test_with_usage(self, write: Write) -> None:
        line = {"timestamp": "2026-01-01T00:00:00Z", "request": {"messages": [], "user": "u", "n": 2},
                "response": {"usage": {"prompt_tokens": 12, "completion_tokens": 9}}}  # fmt: skip
        later = {"created": 1767225604, "usage": {"input_tokens": 3, "output_tokens": 4}}
        first, second = read_trace(write([line, later])).requests()
        assert first == TraceRequest(0.0, 12, 5, None, tenant="u", num_samples=2)
        assert second == TraceRequest(4.0, 3, 4, None)

    def test_with_texts(self, write: Write) -> None:
        messages = [{"role": "user", "content": "hi"}]
        answer = {"choices": [{"message": {"role": "assistant", "content": "well"}}]}
        lines = [
            {"ts": 1, "body": {"messages": messages}, "response": answer},
            {"ts": 2, "body": {"messages": [*messages, {"role": "user", "content": "again"}], "max_tokens": 7}},
        ]
        first, second = read_trace(write(lines), tokenizer=letters).requests()
        assert (first.prompt_tokens, first.output_tokens) == (8, 4)
        assert (second.prompt_tokens, second.output_tokens) == (19, 7)
        assert (first.runs, second.runs) == (((0, 8),), ((0, 19),))

    def test_milliseconds_since_1970(self, write: Write) -> None:
        lines = [{"ts": 1767225600000 + at, "prompt_tokens": 5, "completion_tokens": 3} for at in (250, 0, 750)]
        trace = read_trace(write(lines))
        assert lengths_of(trace) == [(0.0, 5, 3), (0.25, 5, 3), (0.75, 5, 3)]
        assert any("milliseconds" in each for each in trace.origin.notes)


BAD = {
    "before the beginning": request(timestamp=-1),
    "the output has no tokens": request(output_length=0),
    "the prompt has no tokens": request(input_length=0),
    "prompt and outputs are longer": request(num_samples=2**20, output_length=2**20),
    "3 units of 16 tokens are said of a prompt of 20": request(block_size=16, hash_runs=[[0, 3]]),
    "0 units of 16 tokens are said of a prompt of 20": request(block_size=16, hash_runs=[]),
    "negative, empty": request(block_size=16, hash_runs=[[0, 2], [-1, 0]]),
    "its unit is 32 tokens": request(block_size=32, hash_runs=[[0, 1]]),
    "it has hash_ids, but lines before have hash_runs": request(hash_ids=[1]),
    "output_length": {"timestamp": 1, "input_length": 3},
    "Expected `int`": request(input_length="many"),
    "a number is below 0": request(input_length=2**40),
}


class TestBadLines:
    @pytest.mark.parametrize("reason", BAD)
    def test_is_named_by_line(self, write: Write, reason: str) -> None:
        good = request(block_size=16, hash_runs=[[0, 2]])
        path = write([good, BAD[reason], good])
        with pytest.raises(InvalidTrace, match=r"1 of 3 requests .*the first in line 2") as error:
            read_trace(path)
        assert reason in error.value.message
        trace = read_trace(path, bad_lines="skip")
        assert trace.num_requests == 2
        assert [(each.count, each.first_line) for each in trace.origin.skipped] == [(1, 2)]

    def test_same_reasons_are_counted(self, write: Write) -> None:
        lines = [request(), *[request(output_length=0)] * 3, request(timestamp=-5), request(), request(output_length=0)]
        skipped = {
            each.reason: (each.count, each.first_line)
            for each in read_trace(write(lines), bad_lines="skip").origin.skipped
        }
        assert sorted(skipped.values()) == [(1, 5), (4, 2)]

    def test_many_end_the_reading_early(self, write: Write) -> None:
        with pytest.raises(InvalidTrace, match="at least 1,000 lines"):
            read_trace(write([request(input_length="x")] * 3000))

    def test_csv_lines_are_counted_as_in_the_file(self, write: Write) -> None:
        path = write("arrival,prompt,output\n1,2,3\n\n2,x,3\nlater,2,3\n3,4,5,6\n4,5\n")
        trace = read_trace(path, bad_lines="skip")
        assert lengths_of(trace) == [(1.0, 2, 3), (3.0, 4, 5)]
        assert sorted(each.first_line for each in trace.origin.skipped) == [4, 5, 7]

    def test_nothing_left(self, write: Write) -> None:
        with pytest.raises(InvalidTrace, match="all 2 lines were skipped"):
            read_trace(write([request(output_length=0)] * 2), bad_lines="skip")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (gzip.compress(b""), "is empty"),
        (gzip.compress(b'{"a": 1}' * 999)[:40], "ends early or is damaged"),
        (zstandard.compress(b'{"a": 1}' * 999)[:15], "ends early or is damaged"),
        (b"PAR1 and nothing more", "no Parquet file"),
        (b'{"a": 1}\n', "none of the known formats"),
        (b"arrival,prompt\n1,2\n", "none of the known formats"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        (b'[{"conversations": [', "is no JSON, or ends early"),
        (b'{"input_lens": [1], "output_lens": []}', "1 input_lens but 0"),
    ],
)
def test_files_that_are_none(write: Write, content: bytes, says: str) -> None:
    with pytest.raises(InvalidTrace, match=says):
        read_trace(write(content), tokenizer=letters)


def test_names_that_are_none(tmp_path: Path, write: Write) -> None:
    with pytest.raises(InvalidTrace, match="There is no file"):
        read_trace(tmp_path / "nothing")
    with pytest.raises(InvalidTrace, match="cannot be read"):
        read_trace(tmp_path)
    with pytest.raises(InvalidTrace, match="no trace format 'odd'") as error:
        read_trace(write([request()]), format="odd")
    assert "mooncake" in error.value.hint
    path = write("ts,in,out\n1,2,3\n")
    for columns in (
        {"arrival": "ts", "prompt": "in"},
        {"arrival": "t", "prompt": "in", "output": "out"},
        {"odd": "ts"},
    ):
        with pytest.raises(InvalidTrace, match="column"):
            read_trace(path, columns=columns)


HEADS = (
    b"", b"PAR1", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"[", b"{", b"a,b\n", b"arrival,prompt,output\n",
    b'{"timestamp":0,"input_length":1,"output_length":', b'{"id":1,"block_size":2,"requests":[', b'{"usage":',
    b'[{"conversations":', b'{"input_lens":[],"output_lens":[',
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(head=st.sampled_from(HEADS), rest=st.binary(max_size=80), skip=st.booleans(), packed=st.booleans())
def test_whatever_the_bytes_the_error_is_typed(
    tmp_path_factory: pytest.TempPathFactory, head: bytes, rest: bytes, skip: bool, packed: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(gzip.compress(head + rest) if packed else head + rest)
    try:
        trace = read_trace(path, bad_lines="skip" if skip else "fatal", tokenizer=letters)
    except LooseleafError:
        return
    assert sum(1 for _ in trace.requests()) == trace.num_requests


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
FIELDS = """timestamp input_length output_length hash_ids hash_runs segments block_size session usage prompt_tokens
completion_tokens messages prompt request response n priority id requests user ts max_tokens choices"""
fields = st.sampled_from(FIELDS.split())


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.dictionaries(fields, json_values, max_size=6), min_size=1, max_size=4), base=st.integers(0, 2))
def test_whatever_the_fields_the_error_is_typed(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]], base: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "fields"
    whole = ({}, request(), {"usage": {"prompt_tokens": 3, "completion_tokens": 1}})[base]
    path.write_text("\n".join(json.dumps(line) for line in [whole, *({**whole, **line} for line in lines)]))
    try:
        trace = read_trace(path, bad_lines="skip", tokenizer=letters)
    except LooseleafError:
        return
    assert sum(1 for _ in trace.requests()) == trace.num_requests


requests = st.builds(
    TraceRequest,
    arrival=st.floats(0, 1e6),
    prompt_tokens=st.just(30),
    output_tokens=st.integers(1, 1000),
    runs=st.sampled_from([None, ((0, 30),), ((5, 10), (40, 20))]),
    tenant=st.text(max_size=5),
    priority=st.integers(-9, 9),
    session=st.text(max_size=5),
    num_samples=st.integers(1, 9),
)


@settings(max_examples=25, deadline=None)
@given(rows=st.lists(requests, min_size=1, max_size=30))
def test_a_trace_survives_being_written(tmp_path_factory: pytest.TempPathFactory, rows: list[TraceRequest]) -> None:
    folder = tmp_path_factory.getbasetemp()
    filled = builder.TableBuilder(folder / "made", "fatal")
    filled.unit = 10
    for line, r in enumerate(rows, 1):
        names = {"tenant": r.tenant, "priority": r.priority, "session": r.session, "num_samples": r.num_samples}
        filled.add(line, r.arrival, r.prompt_tokens, r.output_tokens, r.runs, **names)  # type: ignore[arg-type]
    trace = filled.finish("made")
    assert list(trace.requests()) == sorted(rows, key=lambda r: r.arrival)
    write_parquet(trace, folder / "written.parquet")
    again = read_trace(folder / "written.parquet")
    assert list(again.requests()) == list(trace.requests())
    assert (again.unit, again.num_requests) == (10, len(rows))


def test_disorder_beyond_memory(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "BATCH", 50)
    monkeypatch.setattr(builder, "LARGEST_IN_MEMORY", 5_000)
    draw = np.random.default_rng(0)
    times = draw.integers(0, 300, 1000).tolist()
    lines = [request(timestamp=at, output_length=i + 1) for i, at in enumerate(times)]
    trace = read_trace(write(lines))
    assert isinstance(trace, table.TableTrace)
    assert len(trace.parts) > 3
    expected = sorted(((at / 1000, 20, i + 1) for i, at in enumerate(times)), key=lambda row: row[0])
    assert lengths_of(trace) == lengths_of(trace) == expected
    assert trace.folder is not None
    folder = trace.folder.path
    assert folder.is_dir()
    del trace
    assert not folder.exists()


@given(prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=12))
def test_prompts_share_ids_exactly_as_far_as_tokens(prompts: list[list[int]]) -> None:
    tree = PromptTree(TokenIds())
    ids: list[list[int]] = []
    for tokens in prompts:
        runs = tree.runs(tokens)
        ids.append([i for first, length in runs for i in range(first, first + length)])
        assert len(ids[-1]) == len(tokens)
        for earlier, known in zip(prompts, ids, strict=False):
            assert common(ids[-1], known) == common(tokens, earlier)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(length=st.integers(1, 200), unit=st.integers(1, 40), count=st.integers(0, 250))
def test_a_chain_covers_its_prompt_or_is_refused(length: int, unit: int, count: int) -> None:
    if count in {length // unit, -(-length // unit)}:
        runs = chain([(7, count)] if count else [], unit, length, TokenIds())
        assert runs is None if not count else runs is not None and sum(n for _, n in runs) == length
    else:
        with pytest.raises(Contradiction):
            chain([(7, count)] if count else [], unit, length, TokenIds())


READING = """
import resource, sys
from looseleaf.replay.trace import read_trace
for path in sys.argv[1:]:
    trace = read_trace(path)
    rows = sum(len(batch) for batch in trace.batches())
    print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    paths = []
    for rows in (300_000, 1_200_000):
        paths.append(tmp_path / f"{rows}.csv")
        arrival = np.arange(rows) / 8
        pl.DataFrame({"arrival": arrival, "prompt": np.arange(rows) % 999 + 1, "output": 7}).write_csv(paths[-1])
    found = subprocess.run([sys.executable, "-c", READING, *paths], capture_output=True, text=True, check=True).stdout
    (_, small), (rows, large) = (map(int, line.split()) for line in found.splitlines())
    assert rows == 1_200_000
    assert large - small < 30  # MiB; the table in memory would take 70 more
