"""`looseleaf calibrate` on the tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from looseleaf.replay.calibrated import Calibrated
from looseleaf.replay.cost_files import load_cost

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model(tiny_folder: Path) -> list[str]:
    return ["--model", str(tiny_folder), "--dtype", "float32", "--kv-cache-memory", "200kB", "--seconds", "0"]


def test_step_times_are_written_for_replays(cli: Cli, model: list[str], tmp_path: Path) -> None:
    code, output, errors = cli("calibrate", *model, "--out", tmp_path / "cost.json")
    assert code == 0
    assert "each token sampled" in output
    assert "mean error" in output
    assert all(len(line) <= 80 for line in output.splitlines() if "--model" not in line and str(tmp_path) not in line)
    assert "cost.json" in errors
    cost = load_cost(tmp_path / "cost.json")
    assert isinstance(cost, Calibrated)
    assert cost.about["block_size"] == 16
    assert cost.seconds(num_tokens=8, num_seqs=8, num_sampled=8, context_tokens=80, attention_pairs=80) > 0


def test_json_is_what_is_written(cli: Cli, model: list[str], tmp_path: Path) -> None:
    code, output, _ = cli("calibrate", *model, "--out", tmp_path / "cost.json", "--json")
    assert code == 0
    assert json.loads(output) == json.loads((tmp_path / "cost.json").read_text())


def test_a_folder_that_is_not_there_is_named_before_anything_is_measured(cli: Cli, model: list[str]) -> None:
    code, _, errors = cli("calibrate", *model, "--out", "no-such-folder/cost.json")
    assert code == 2
    assert "no-such-folder" in errors
