from __future__ import annotations

from collections.abc import Iterator

import pytest

from server.served import Served, served


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running
