"""`looseleaf bench serve` against a real server, in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server.served import MODEL, Served, served

Run = Callable[..., "tuple[int, str, str]"]
SMALL = ("--input-len", "4-12", "--output-len", "5", "--token-ids", "3-200", "--warm-up", "1", "--quiet")


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


def figures(cli: Run, server: Served, *options: object) -> dict[str, Any]:
    code, text, errors = cli("bench", "serve", server.url, *SMALL, "--json", *options)
    assert code == 0, errors
    found: dict[str, Any] = json.loads(text)
    return found


def test_always_so_many(cli: Run, server: Served, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    found = figures(cli, server, "--concurrency", 3, "--requests", 8, "--slo", "ttft=60s,e2e=60s", "--save", path)
    assert (found["completed"], found["failed"], found["model_id"]) == (8, 0, MODEL)
    assert found["total_output_tokens"] == 8 * 5
    assert found["max_concurrent_requests"] == 3
    assert found["good_share"] == 1
    assert 0 < found["median_ttft_ms"] < found["median_e2el_ms"]
    saved = json.loads(path.read_text())
    assert saved["output_lens"] == [5] * 8
    assert sum(saved["input_lens"]) == found["total_input_tokens"]


def test_at_a_rate(cli: Run, server: Served) -> None:
    found = figures(cli, server, "--rate", 200, "--requests", 6)
    assert (found["completed"], found["request_rate"], found["max_concurrency"]) == (6, 200, None)
    assert 0 <= found["median_lateness_ms"] <= found["max_lateness_ms"]


def test_a_trace(cli: Run, server: Served, tmp_path: Path) -> None:
    lines = [{"timestamp": 30 * i, "input_length": 8, "output_length": 2 + i} for i in range(4)]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = figures(cli, server, "--trace", path, "--longest", 12, "--speed-up", 3)
    assert (found["num_prompts"], found["total_output_tokens"]) == (3, 2 + 3 + 4)
    assert found["request_rate"] == pytest.approx(3 / 0.02)


def test_a_workload(cli: Run, server: Served, tmp_path: Path) -> None:
    path = tmp_path / "work.json"
    path.write_text(json.dumps({"T": [[{"prompt": [5, 6, 7], "n_out": 4, "n": 2}, {"prompt": [8], "n_out": 1}]]}))
    found = figures(cli, server, "--workload", path, "--test", "T")
    assert (found["completed"], found["total_output_tokens"], found["total_input_tokens"]) == (2, 9, 4)


def test_a_chat_for_people_to_read(cli: Run, server: Served) -> None:
    code, text, _ = cli("bench", "serve", server.url, *SMALL, "--chat", "--requests", 2, "--slo", "ttft=60s")
    assert code == 0
    for expected in ("first token (TTFT)", "between chunks (ITL)", "Goodput (ttft=60s)", "100.0%", "Failed: none"):
        assert expected in text


def test_what_is_refused_is_counted_by_kind(cli: Run, server: Served) -> None:
    code, text, _ = cli("bench", "serve", server.url, *SMALL, "--model", "other", "--requests", 3, "--json")
    assert code == 1
    assert json.loads(text)["failures"] == {"HTTP 404 model_not_found": 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["http://127.0.0.1:1"], "No server answers at http://127.0.0.1:1"),
        (["--slo", "fast"], "no latency target"),
        (["--input-len", "many"], "no length"),
        (["--trace", "none.jsonl"], "cannot be read"),
        (["--trace", "a.jsonl", "--workload", "b.json"], "two kinds of work"),
        (["--longest", "3"], "more than 3 tokens"),
        (["ftp://box"], "no address"),
    ],
)
def test_what_makes_no_sense(options: list[str], message: str, cli: Run) -> None:
    code, output, errors = cli("bench", "serve", *options)
    assert (code, output) == (2, "")
    assert message in errors


def test_the_client_computes_nothing() -> None:
    program = (
        "import sys, looseleaf.cli.bench_serve, looseleaf.load.driver, looseleaf.load.figures\n"
        "import looseleaf.engine.workload_file\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
