from __future__ import annotations

import sys
from pathlib import Path

import pytest

from looseleaf.memory import ALLOCATORS

# The naive models and the soak driver are plain modules beside the tests; soak.py is also run as a script.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=ALLOCATORS)
def allocator(request: pytest.FixtureRequest) -> str:
    return str(request.param)
