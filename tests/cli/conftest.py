"""The command line on a model of a few kilobytes, in this process."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from looseleaf.cli.main import make_app
from tiny_model import LOADED, write_tiny_folder

Run = Callable[..., "tuple[int, str, str]"]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def cli() -> Run:
    """`cli(*arguments, stdin="")` → exit code, stdout, stderr."""

    def run(*arguments: object, stdin: str | bytes = "") -> tuple[int, str, str]:
        result = CliRunner().invoke(make_app(), [str(each) for each in arguments], input=stdin, prog_name="looseleaf")
        return result.exit_code, result.stdout, result.stderr

    return run


@pytest.fixture
def tiny(tiny_folder: Path) -> list[str]:
    """Options that choose the tiny model and a pool of 128 KB."""
    return ["--model", str(tiny_folder), "--dtype", "float32", "--kv-cache-memory", "128KB", "--max-model-len", "256"]


@pytest.fixture
def not_numbers_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`not_numbers_at(call)`: the `call`-th logits that models compute from now on are not numbers."""
    compute = LOADED.logits

    def arrange(call: int) -> None:
        calls = count(1)

        def logits(model: Any, hidden: Tensor) -> Tensor:
            return compute(model, hidden) * (torch.nan if next(calls) == call else 1.0)

        monkeypatch.setattr(LOADED, "logits", logits)

    return arrange
