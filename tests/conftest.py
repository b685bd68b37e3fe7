"""Shared by the tests of every layer."""

from __future__ import annotations

from pathlib import Path

import pytest

from looseleaf.models.download import DownloadFailed
from looseleaf.models.store import resolve_model


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The default model's file, downloaded when it is not cached."""
    try:
        return resolve_model("smollm2-135m").path
    except DownloadFailed as error:
        pytest.skip(f"the default model is neither cached nor downloadable: {error}")
