"""`looseleaf replay`: one setting or many, what is printed and written, and input that makes no sense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tokenizers

Cli = Callable[..., "tuple[int, str, str]"]
TRACE = "n=30,arrivals=poisson:40,prompt=uniform:20-60,output=uniform:10-40,tenants=a:3|b:1,system=32,seed=5"
POOL = ["--pool-tokens", "1024", "--processes", "1"]


@pytest.fixture
def replay(cli: Cli, tmp_path: Path) -> Cli:
    """`looseleaf replay`, with results kept for this test alone."""
    return lambda *arguments: cli("replay", *arguments, "--results", tmp_path / "results")


def as_json(replay: Cli, *arguments: object) -> dict[str, Any]:
    code, output, errors = replay(*arguments, "--json", "--quiet")
    assert code == 0, errors
    document: dict[str, Any] = json.loads(output)
    return document


def test_one_setting(replay: Cli) -> None:
    code, output, notes = replay(TRACE, *POOL)
    assert code == 0
    assert "held slots with tokens" in output
    assert "Tenants, paged" in output
    assert "30 requests" in notes
    assert "pool in tokens 1,024" in notes


def test_json_is_stable(replay: Cli) -> None:
    document = as_json(replay, TRACE, *POOL, "--slo", "ttft=1s,itl=100ms")
    (cell,) = document["cells"]
    totals = cell["totals"]
    assert (totals["requests"], totals["refused"]) == (30, 0)
    assert sum(
        totals["slot_shares"][kind] for kind in ("token_states", "reserved", "internal_fragmentation", "free")
    ) == (pytest.approx(1))
    assert set(cell["latencies"]) == {"ttft", "tpot", "itl", "e2e", "queue"}
    assert set(cell["latencies"]["ttft"]) == {"mean", "p50", "p90", "p95", "p99"}
    assert sum(cell["bound_shares"].values()) == pytest.approx(1)
    assert cell["goodput"]["share"] == cell["goodput"]["requests"] / 30
    assert {tenant["tenant"] for tenant in cell["tenants"]} == {"a", "b"}
    assert sum(tenant["output_share"] for tenant in cell["tenants"]) == pytest.approx(1)
    assert document == as_json(replay, TRACE, *POOL, "--slo", "ttft=1s,itl=100ms", "--fresh")


def test_a_sweep_has_a_row_for_each_cell(replay: Cli) -> None:
    arguments = [TRACE, *POOL, "--block-size", "1,16", "--prefix-caching", "on,off"]
    document = as_json(replay, *arguments)
    assert [cell["label"] for cell in document["cells"]] == [
        "blocks of 1, cache on",
        "blocks of 1, cache off",
        "blocks of 16, cache on",
        "blocks of 16, cache off",
    ]
    hits = [cell["totals"]["cached_prompt_tokens"] for cell in document["cells"]]
    assert hits[0] > 0 == hits[1]
    code, output, _ = replay(*arguments)
    assert code == 0
    assert output.count("\n16 ") == 4  # in both tables


def test_compare(replay: Cli) -> None:
    document = as_json(replay, TRACE, *POOL, "--compare")
    assert {cell["cell"]["allocator"] for cell in document["cells"]} == {
        "paged",
        "contiguous-max",
        "contiguous-pow2",
        "contiguous-oracle",
    }
    assert len(document["cells"]) == 7


def test_files(replay: Cli, tmp_path: Path) -> None:
    page, folder = tmp_path / "out" / "report.html", tmp_path / "tables"
    code, _, notes = replay(TRACE, *POOL, "--watermark", "0,20%", "--html", page, "--parquet", folder)
    assert code == 0, notes
    assert str(page) in notes
    assert page.stat().st_size < 3e6
    cells, requests, timeline = (
        pl.read_parquet(folder / f"{name}.parquet") for name in ("cells", "requests", "timeline")
    )
    assert cells["cell"].to_list() == ["watermark 0", "watermark 0.2"]
    assert len(requests) == 60
    assert set(timeline["cell"].unique()) == set(cells["cell"])


def test_texts_are_counted_once(replay: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOSELEAF_CACHE", str(tmp_path / "cache"))
    vocabulary = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    vocabulary.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    vocabulary.save(str(tmp_path / "tokenizer.json"))
    chats = [{"id": 1, "conversations": [{"from": "human", "value": "a b a"}, {"from": "gpt", "value": "b b"}]}]
    (tmp_path / "chats.json").write_text(json.dumps(chats))
    arguments = [tmp_path / "chats.json", *POOL, "--tokenizer", tmp_path / "tokenizer.json"]
    document = as_json(replay, *arguments)
    assert document["title"] == "Replay of chats.json"
    totals = document["cells"][0]["totals"]
    assert (totals["prompt_tokens"], totals["output_tokens"]) == (3, 2)
    monkeypatch.setattr("looseleaf.cli.trace_options.load_tokenizer", lambda _name: pytest.fail("counted again"))
    assert as_json(replay, *arguments) == document


def test_measured_step_times(replay: Cli, tmp_path: Path) -> None:
    cost = tmp_path / "cost.json"
    parameters = {"step": 0.5, "token": 0.0, "crossover": 0.0, "sample": 0.0, "context": 0.0, "pair": 0.0}
    cost.write_text(json.dumps({"kind": "calibrated", "parameters": parameters}))
    document = as_json(replay, "n=1,prompt=8,output=11", *POOL, "--cost", cost)
    assert document["cells"][0]["latencies"]["tpot"]["mean"] == pytest.approx(0.5)
    code, _, errors = replay("n=1,prompt=8,output=11", "--cost", cost)
    assert code == 2
    assert "Give --pool-tokens" in errors


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl"),
        (["n=0,prompt=5,output=5"], "n is '0'"),
        ([TRACE, "--block-size", "sixteen"], "--block-size 'sixteen' is not understood"),
        ([TRACE, "--allocator", "slab"], "--allocator 'slab'"),
        ([TRACE, "--slo", "p99=2s"], "'p99=2s' is no latency target"),
        ([TRACE, "--hardware", "abacus"], "abacus"),
        ([TRACE, "--model", "nobody/nothing"], "nobody/nothing"),
        ([TRACE, "--pool-tokens", "10", "--num-blocks", "10"], "both say how large the pool is"),
        ([TRACE, "--compare", "--block-size", "1,2"], "--compare has values of its own"),
        ([TRACE, "--pool-tokens", "8"], "No cell could be replayed"),
        ([TRACE, "--max-num-seqs", "0"], "at least 1"),
        ([TRACE, "--scheduling-policy", "lottery"], "--scheduling-policy 'lottery'"),
        ([TRACE, "--bad-lines", "ignore"], "--bad-lines"),
        ([TRACE, "--max-model-len", "long"], "'--max-model-len': 'long' is neither a whole number"),
        ([TRACE, "--max-model-len", "64,128"], "'--max-model-len': '64,128'"),
    ],
)
def test_bad_input(replay: Cli, arguments: list[str], says: str) -> None:
    code, _, errors = replay(*arguments)
    assert code == 2
    assert says in " ".join(errors.split())


def test_requests_that_can_never_run_are_counted(replay: Cli) -> None:
    code, _, notes = replay("n=3,prompt=uniform:10-400,output=5,seed=1", *POOL, "--max-model-len", "100")
    assert code == 0
    assert "could never run" in " ".join(notes.split())
