"""Shared by the tests of every layer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from looseleaf.models.download import ChecksumMismatch, DownloadFailed
from looseleaf.models.store import resolve_model


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The default model's file, downloaded when it is not cached. Where CI is set, it must be there."""
    try:
        return resolve_model().path
    except ChecksumMismatch:
        raise
    except DownloadFailed as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the default model is neither cached nor downloadable: {error}")
