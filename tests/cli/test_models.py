"""`looseleaf models`: what there is, what is here, and fetching."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from looseleaf.models.store import list_models

Cli = Callable[..., tuple[int, str, str]]


def test_the_list_and_where_models_lie(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = tmp_path / "[bold]cache"
    monkeypatch.setenv("LOOSELEAF_CACHE", str(cache))
    monkeypatch.setattr("looseleaf.models.store.installed_file", lambda _model: None)
    code, output, _ = cli("models", "--json")
    assert code == 0
    models = json.loads(output)
    assert [model["alias"] for model in models] == [known.alias for known in list_models()]
    assert all(not model["cached"] and model["path"].startswith(str(cache)) for model in models)
    code, output, _ = cli("models")
    assert code == 0
    for known in list_models():
        assert known.alias in output
        assert known.licence in output
    assert "no" in output.split()
    monkeypatch.setattr("looseleaf.models.store.has_size", lambda _path, _size: True)
    code, output, _ = cli("models")
    assert code == 0
    assert "yes" in output.split()
    assert all(f"{known.alias}: {known.path}" in output for known in list_models())


def test_fetch_prints_the_path(cli: Cli, tiny_folder: Path) -> None:
    assert cli("models", "--fetch", tiny_folder)[:2] == (0, f"{tiny_folder}\n")
    found = json.loads(cli("models", "--fetch", tiny_folder, "--json")[1])
    assert found == {"name": str(tiny_folder), "path": str(tiny_folder), "kind": "folder"}


def test_fetching_what_does_not_exist(cli: Cli) -> None:
    code, output, errors = cli("models", "--fetch", "smolm2")
    assert (code, output) == (2, "")
    assert "Did you mean smollm2-135m?" in errors
