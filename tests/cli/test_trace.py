"""`looseleaf trace`: descriptions, conversions, and refusals that say what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

Run = Callable[..., "tuple[int, str, str]"]

SPEC = (
    "n=200,arrivals=poisson:4,prompt=uniform:20-90,output=uniform:5-9,system=32x2,turns=uniform:1-4,think=5,tenants=3"
)


def test_describe(cli: Run) -> None:
    code, output, _ = cli("trace", "describe", SPEC)
    assert code == 0
    for part in (
        "200 requests",
        "gap CV",
        "Working set",
        "Tenants: 3",
        "Sessions",
        "Reuse, unbounded",
        "last token never",
    ):
        assert part in output
    assert "█" not in output


def test_plots(cli: Run) -> None:
    code, output, _ = cli("trace", "describe", SPEC, "--plot")
    assert code == 0
    for part in ("Prompts by length", "Outputs by length", "Requests in", "Found tokens in", "Working set, over", "█"):
        assert part in output
    assert max(map(len, output.splitlines())) < 400


def test_describe_as_json(cli: Run) -> None:
    code, output, _ = cli("trace", "describe", SPEC, "--json", "--block-size", 8, "--window", 10)
    assert code == 0
    found = json.loads(output)
    assert found["requests"] == sum(bucket["requests"] for bucket in found["buckets"]) == 200
    assert found["reuse"]["block_size"] == 8
    assert found["window"] == 10
    rates = found["reuse"]["rates"]
    assert 0 < rates["tokens_full_blocks"]["share"] <= rates["tokens_last"]["share"] < 1


def test_convert(cli: Run, tmp_path: Path) -> None:
    log, table = tmp_path / "log.jsonl", tmp_path / "table.parquet"
    lines = [
        {"timestamp": 1000 * i, "input_length": 40, "output_length": i % 4, "block_size": 16, "hash_runs": [[0, 3]]}
        for i in range(8)
    ]
    log.write_text("\n".join(map(json.dumps, lines)))
    code, _, complaint = cli("trace", "convert", log, "--to", table)
    assert code == 2
    assert "2 of 8 requests" in complaint
    assert "--bad-lines skip" in complaint
    assert not table.exists()
    code, output, remarks = cli("trace", "convert", log, "--to", table, "--bad-lines", "skip", "--json")
    assert code == 0
    assert json.loads(output) == {"file": str(table), "requests": 6, "format": "mooncake", "unit": 16}
    assert "2 lines" in remarks
    assert "the first in line 1" in remarks
    assert "6 requests" in cli("trace", "describe", table)[1]


def test_a_generated_trace_is_converted(cli: Run, tmp_path: Path) -> None:
    assert cli("trace", "convert", SPEC, "--to", tmp_path / "made.parquet")[0] == 0
    made, spec = (json.loads(cli("trace", "describe", each, "--json")[1]) for each in (tmp_path / "made.parquet", SPEC))
    for part in ("requests", "prompt", "output", "gaps", "reuse", "buckets", "tenants", "sessions"):
        assert made[part] == spec[part]


def test_texts_and_columns(cli: Run, tmp_path: Path) -> None:
    vocabulary = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    vocabulary.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    vocabulary.save(str(tmp_path / "tokenizer.json"))
    chats = [{"id": 1, "conversations": [{"from": "human", "value": "a b a"}, {"from": "gpt", "value": "b"}]}]
    (tmp_path / "chats.json").write_text(json.dumps(chats))
    arguments = ("trace", "describe", tmp_path / "chats.json", "--json", "--tokenizer")
    code, output, _ = cli(*arguments, tmp_path / "tokenizer.json")
    assert code == 0
    assert json.loads(output)["prompt"]["total"] == 3
    code, _, complaint = cli(*arguments, tmp_path / "chats.json")
    assert code == 2
    assert "no tokenizer" in complaint

    (tmp_path / "any.csv").write_text("when,i,o\n1,2,3\n2,3,4\n")
    code, output, _ = cli(
        "trace",
        "describe",
        tmp_path / "any.csv",
        "--columns",
        "arrival=when,prompt=i,output=o",
        "--arrivals",
        "all",
        "--json",
    )
    assert code == 0
    assert json.loads(output)["gaps"] is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["describe", "nothing.jsonl"], "There is no file nothing.jsonl"),
        (["describe", "n=3"], "lacks prompt and output"),
        (["describe", SPEC, "--window", "0"], "--window"),
        (["describe", SPEC, "--bad-lines", "odd"], "Choose fatal or skip"),
        (["describe", SPEC, "--columns", "odd"], "names no columns"),
        (["describe", SPEC, "--arrivals", "odd"], "poisson:RATE"),
        (["convert", SPEC, "--to", "/nowhere/x.parquet"], "cannot be written"),
    ],
)
def test_refusals(cli: Run, arguments: list[str], says: str) -> None:
    code, output, complaint = cli("trace", *arguments)
    assert (code, output) == (2, "")
    assert says in " ".join(complaint.split())
