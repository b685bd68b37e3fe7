from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from looseleaf.plan.model_config import load_model
from looseleaf.plan.shape import ModelShape


@pytest.fixture(scope="session")
def configs() -> Path:
    """Published configurations."""
    folder = Path(os.environ.get("LOOSELEAF_SHARED", Path(__file__).parents[3] / "shared")) / "model_configs"
    if not folder.is_dir():
        pytest.skip("published configurations not found (set LOOSELEAF_SHARED)")
    return folder


@pytest.fixture(scope="session")
def published(configs: Path) -> Callable[[str], ModelShape]:
    return lambda name: load_model(configs / f"{name}.json")
