"""One server for most of the faults; after each test it must be as good as new."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from server.faults.faulty_server import FaultyServer
from tiny_model import write_tiny_folder

TEMPLATE = """\
{%- if mode == "loop" %}{% for i in range(90000) %}{% for j in range(9000) %}{% set k = i * j %}{% endfor %}{% endfor %}
{%- elif mode == "attributes" %}{{ messages.__class__.__mro__[1].__subclasses__() }}
{%- elif mode == "method" %}{{ messages[0].content.format.__globals__ }}
{%- elif mode == "format" %}{{ "{0.__class__.__init__.__globals__}".format(messages) }}
{%- elif mode == "size" %}{{ "x" * 1000000000 }}
{%- elif mode == "recursion" %}{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}
{%- endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}assistant:"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose chat template does what it must not when `mode` asks for it."""
    path = write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny")
    settings = path / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": TEMPLATE}))
    return path


@pytest.fixture(scope="session")
def shared(folder: Path) -> Iterator[FaultyServer]:
    running = FaultyServer(folder)
    yield running
    running.end()


@pytest.fixture
def server(shared: FaultyServer) -> Iterator[FaultyServer]:
    assert shared.process.poll() is None
    yield shared
    asyncio.run(shared.settle())


@pytest.fixture
def counted(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Adds to the summary at the end: keywords are counts."""

    def count(**counts: int) -> None:
        record_property("faults", {name.replace("_", " "): number for name, number in counts.items()})

    return count
