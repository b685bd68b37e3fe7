"""`looseleaf bench`: allocators side by side on the same work, and workload files that are wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from looseleaf.memory.factory import ALLOCATORS

Cli = Callable[..., tuple[int, str, str]]


def request(length: int, n_out: int, first: int = 1, **more: Any) -> dict[str, Any]:
    return {"prompt": [(first + i) % 250 + 1 for i in range(length)], "n_out": n_out} | more


WORK: dict[str, Any] = {
    "meta": {"note": "anything"},
    "warmup": [request(8, 16)],
    "one": [request(9, 5), request(9, 5, 70), request(9, 5, 90)],
    "many": [[request(5 + i, 4 + i, 9 * i) for i in range(6)], [request(8 + i, 4, i) for i in range(6)]],
    "prefix": [{"prefix": [5] * 20, "suffixes": [[1, 2], [3, 4, 5]], "n_out": 3}],
    "samples": [request(20, 6, n=4, temperature=1.0)],
}


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "workload.json"
    path.write_text(json.dumps(WORK))
    return path


def test_allocators_side_by_side(cli: Cli, tiny: list[str], workload: Path) -> None:
    allocators = [option for name in ALLOCATORS for option in ("--allocator", name)]
    code, output, _ = cli("bench", workload, *tiny, "--runs", 2, *allocators, "--json")
    assert code == 0
    tests = json.loads(output)
    assert list(tests) == ["one", "many", "prefix", "samples"]
    counts = {
        "one": [(1, 9, 5)] * 2,
        "many": [(6, 45, 39), (6, 63, 24)],
        "prefix": [(2, 45, 6)],
        "samples": [(1, 20, 24)],
    }
    for name, result in tests.items():
        assert result["same_tokens"] is True
        assert list(result["settings"]) == list(ALLOCATORS)
        for runs in (setting["runs"] for setting in result["settings"].values()):
            seen = [(run["requests"], run["prompt_tokens"], run["output_tokens"]) for run in runs]
            assert seen == counts[name]
            for run in runs:
                assert run["output_tokens_per_second"] == pytest.approx(run["output_tokens"] / run["seconds"])
                assert run["num_blocks"] == 31
    many = {name: setting["runs"][0] for name, setting in tests["many"]["settings"].items()}
    # 31 blocks of 16: paged takes all six requests at once, reserving 256 slots for each takes one (16 blocks).
    assert many["paged"]["peak_sequences"] == 6
    assert many["contiguous-max"]["peak_sequences"] == 1
    assert many["paged"]["held_slots_with_tokens"] > 5 * many["contiguous-max"]["held_slots_with_tokens"]


def test_the_table(cli: Cli, tiny: list[str], workload: Path) -> None:
    options = ["--test", "many", "--allocator", "paged", "--allocator", "contiguous-oracle", "--max-requests", "2"]
    code, output, _ = cli("bench", workload, *tiny, *options)
    assert code == 0
    assert "many: 2 requests × 2" in output
    assert "paged" in output
    assert "contiguous-oracle" in output
    assert re.search(r"output tokens/s +\d+\.\d \(\d+\.\d–\d+\.\d\) +\d+\.\d", output)
    assert re.search(r"sequences at once, peak +2 +2", output)
    assert "All settings gave the same tokens." in output
    assert all(len(line) <= 80 for line in output.splitlines())


def test_no_run_finds_what_the_one_before_left_in_the_cache(cli: Cli, tiny: list[str], tmp_path: Path) -> None:
    path = tmp_path / "workload.json"
    path.write_text(json.dumps({"warmup": [request(40, 2)], "same": [request(40, 2)] * 2}))
    code, output, _ = cli("bench", path, *tiny, "--json")
    assert code == 0
    (setting,) = json.loads(output)["same"]["settings"].values()
    assert [run["cached_prompt_tokens"] for run in setting["runs"]] == [0, 0]


def test_kv_dtypes_side_by_side_in_the_same_memory(cli: Cli, tiny: list[str], workload: Path) -> None:
    options = ["--kv-cache-dtype", "float32", "--kv-cache-dtype", "bfloat16"]
    code, output, _ = cli("bench", workload, *tiny, *options, "--test", "many", "--json")
    assert code == 0
    settings = json.loads(output)["many"]["settings"]
    assert [setting["kv_cache_dtype"] for setting in settings.values()] == list(settings) == ["float32", "bfloat16"]
    assert [setting["kv_bytes_per_token"] for setting in settings.values()] == [256, 128]
    assert [setting["runs"][0]["num_blocks"] for setting in settings.values()] == [31, 62]
    assert settings["bfloat16"]["kv_cache_bytes"] == settings["float32"]["kv_cache_bytes"] <= 128_000


def test_dtypes_and_allocators_at_once(cli: Cli, tiny: list[str], workload: Path) -> None:
    options = [f"--{o}={v}" for o, v in (("kv-cache-dtype", "auto"), ("kv-cache-dtype", "bfloat16"))]
    options += ["--allocator=paged", "--allocator=contiguous-oracle", "--test=many", "--max-requests=2", "--runs=1"]
    code, output, _ = cli("bench", workload, *tiny, *options, "--json")
    assert code == 0
    found = json.loads(output)["many"]
    assert found["same_tokens"] is True
    names = ["paged auto", "paged bfloat16", "contiguous-oracle auto", "contiguous-oracle bfloat16"]
    assert list(found["settings"]) == names


def test_a_run_with_failed_answers_is_marked(
    cli: Cli, tiny: list[str], workload: Path, not_numbers_at: Callable[[int], None]
) -> None:
    options = ["--test", "samples", "--test", "prefix", "--quiet"]
    after_warmup = 8 + 2
    not_numbers_at(after_warmup)
    code, output, errors = cli("bench", workload, *tiny, *options)
    assert code == 1
    assert re.findall("answers that failed +([0-9])", output) == ["4", "0"]
    assert errors.startswith("4 answers of 6 failed: ")
    not_numbers_at(after_warmup)
    code, output, errors = cli("bench", workload, *tiny, *options, "--json")
    assert code == 1
    runs = {name: test["settings"]["paged"]["runs"] for name, test in json.loads(output).items()}
    assert [runs[name][0]["failed_answers"] for name in ("samples", "prefix")] == [4, 0]
    assert errors.startswith("4 answers of 6 failed: ")


def test_names_of_tests_are_printed_as_they_are(cli: Cli, tiny: list[str], tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps({"[red]a[/b]": [request(4, 4)]}))
    code, output, _ = cli("bench", path, *tiny)
    assert code == 0
    assert "[red]a[/b]: 1 requests × 1" in output


def test_help_shows_the_format_whole(cli: Cli) -> None:
    text = " ".join(cli("bench", "offline", "--help")[1].replace("│", " ").split())
    for part in ('{"prompt": [token ids], "n_out": 16}', '{"prefix": [ids], "suffixes": [[ids], …], "n_out": 32}'):
        assert part in text


def test_a_file_whose_requests_never_fit_is_refused_before_anything_runs(
    cli: Cli, tiny: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "large.json"
    path.write_text(json.dumps({"a": [request(4, 4)], "b": [[request(4, 4), request(200, 100)]]}))
    code, output, errors = cli("bench", path, *tiny)
    assert (code, output) == (2, "")
    assert "'b[0][1]' needs 300 tokens" in errors


GOOD = {"prompt": [1, 2], "n_out": 3}
MALFORMED = [
    ("not json", "no JSON"),
    ("[" * 100_000, "no JSON"),
    ("[]", "no JSON object"),
    ("{}", "no tests"),
    ('{"warmup": []}', "no tests"),
    (json.dumps({"T": []}), "T is an empty list"),
    (json.dumps({"T": 5}), "T is not a list"),
    (json.dumps({"T": [5]}), "T[0] is a int"),
    (json.dumps({"T": [[]]}), "T[0] is an empty list"),
    (json.dumps({"T": [[GOOD, "x"]]}), "T[0][1] is a str"),
    (json.dumps({"T": [{"prompt": [1]}]}), "T[0] has the keys prompt"),
    (json.dumps({"T": [GOOD | {"n_in": 1}]}), "n_in"),
    (json.dumps({"T": [GOOD | {"prompt": []}]}), "T[0].prompt is an empty list"),
    (json.dumps({"T": [GOOD | {"prompt": [1, -1]}]}), "T[0].prompt[1] is -1"),
    (json.dumps({"T": [GOOD | {"prompt": [True]}]}), "T[0].prompt[0] is True"),
    (json.dumps({"T": [GOOD | {"prompt": "text"}]}), "T[0].prompt is not a list"),
    (json.dumps({"T": [GOOD | {"n_out": 0}]}), "T[0]: max_tokens is 0"),
    (json.dumps({"T": [GOOD | {"n_out": None}]}), "T[0].n_out is null"),
    (json.dumps({"T": [GOOD | {"n": 0}]}), "T[0]: n is 0"),
    (json.dumps({"T": [GOOD | {"temperature": -1}]}), "T[0]: temperature is -1"),
    (json.dumps({"T": [{"suffixes": [[1]], "n_out": 1}]}), "T[0].prefix is not a list"),
    (json.dumps({"T": [{"prefix": [1], "suffixes": [[]], "n_out": 1}]}), "T[0].suffixes[0] is an empty list"),
    (json.dumps({"T": [GOOD], "warmup": [3]}), "warmup[0] is a int"),
    (json.dumps({"T": [GOOD | {"prompt": [1, 999]}]}), "outside the vocabulary"),
]


@pytest.mark.parametrize(("content", "message"), MALFORMED, ids=[message for _, message in MALFORMED])
def test_a_malformed_workload_is_refused(content: str, message: str, cli: Cli, tiny: list[str], tmp_path: Path) -> None:
    path = tmp_path / "workload.json"
    path.write_text(content)
    code, output, errors = cli("bench", path, *tiny)
    assert (code, output) == (2, "")
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--test", "T9"], "no test 'T9'"),
        (["--allocator", "slab"], "no allocator 'slab'"),
        (["--runs", "0"], "Invalid value for '--runs'"),
    ],
)
def test_options_that_make_no_sense(
    options: list[str], message: str, cli: Cli, tiny: list[str], workload: Path
) -> None:
    code, output, errors = cli("bench", workload, *tiny, *options)
    assert (code, output) == (2, "")
    assert message in errors


def test_a_missing_file(cli: Cli, tiny: list[str], tmp_path: Path) -> None:
    code, _, errors = cli("bench", tmp_path / "none.json", *tiny)
    assert code == 2
    assert "No such file" in errors
