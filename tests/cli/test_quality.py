"""`looseleaf quality` on the tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Cli = Callable[..., tuple[int, str, str]]
SHORT = ["--window", "32", "--chunk", "10", "--decodes", "4", "--tokens", "128"]


@pytest.fixture
def model(tiny_folder: Path) -> list[str]:
    return ["--model", str(tiny_folder), "--dtype", "float32"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("It was a bright cold day in April, and the clocks were striking thirteen. " * 5)
    return path


def test_a_setting_against_itself_costs_nothing(cli: Cli, model: list[str], text: Path) -> None:
    code, output, _ = cli("quality", *model, *SHORT, "--text", text, "--json")
    assert code == 0
    found = json.loads(output)
    assert (found["text"], found["tokens"]) == (str(text), 128)
    assert found["kl_nats"] == {"direction": "baseline || candidate", "mean": 0, "median": 0, "p95": 0, "max": 0}
    assert found["top1_agreement"]["share"] == 1
    assert found["baseline"] == found["candidate"]
    assert found["baseline"]["kv_bytes_per_token"] == 256


def test_the_bfloat16_cache_against_the_float32_one(cli: Cli, model: list[str], text: Path) -> None:
    settings = ["--kv-cache-dtype", "bfloat16", "--baseline-kv-cache-dtype", "float32"]
    code, output, _ = cli("quality", *model, *SHORT, "--text", text, *settings, "--json")
    assert code == 0
    found = json.loads(output)
    assert 0 < found["kl_nats"]["mean"] <= found["kl_nats"]["p95"] <= found["kl_nats"]["max"]
    assert [found[side]["kv_cache_dtype"] for side in ("baseline", "candidate")] == ["float32", "bfloat16"]
    assert [found[side]["kv_bytes_per_token"] for side in ("baseline", "candidate")] == [256, 128]


def test_the_table_fits_80_columns_and_the_default_text_is_there(cli: Cli, model: list[str]) -> None:
    code, output, errors = cli("quality", *model, *SHORT, "--kv-cache-dtype", "bfloat16")
    assert code == 0
    assert "Top-1 agreement: 100.00% (95 % interval 97.09% to 100.00%)" in output
    assert "KL(baseline || candidate), nats: mean 0.000000" in output
    assert all(len(line) <= 80 for line in output.splitlines())
    assert "128 positions of Python 3" in errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--text", "no such file"], "cannot be read"),
        (["--window", "100000"], "max_model_len is 100,000"),
        (["--baseline-quantization", "int3"], "quantization 'int3'"),
        (["--baseline-kv-cache-dtype", "int3"], "kv_cache_dtype 'int3'"),
    ],
)
def test_what_cannot_be_measured(cli: Cli, model: list[str], options: list[str], message: str) -> None:
    code, output, errors = cli("quality", *model, *options)
    assert (code, output) == (2, "")
    assert message in errors
