"""Keys and tenants: who is let in, and that a broken file changes nothing."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.errors import ConfigurationError
from looseleaf.server.identity import DEFAULT_TENANT, KeyRing, Tenant

FILE = """
[tenants.reading]
keys = ["r-1", "r-2"]
weight = 2.5
max_concurrent_requests = 3
tokens_per_minute = 600
lowest_priority_value = 0

[tenants.writing]
keys = ["w-1"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(FILE)
    path.chmod(0o600)
    return path


def test_tenants_by_their_keys(file: Path) -> None:
    ring = KeyRing(["own"], file)
    assert ring.required
    assert ring.tenant_of("r-1") == ring.tenant_of("r-2") == ring.tenant_named("reading")
    assert ring.tenant_of("r-1") == Tenant(
        name="reading", weight=2.5, max_concurrent_requests=3, tokens_per_minute=600, lowest_priority_value=0
    )
    assert ring.tenant_of("w-1") == Tenant(name="writing")
    assert ring.tenant_of("own") == Tenant(name=DEFAULT_TENANT)
    for unknown in ("", "r-", "r-1 ", "R-1", "r-11"):
        assert ring.tenant_of(unknown) is None


def test_json_is_read_as_toml_is(tmp_path: Path) -> None:
    other = tmp_path / "keys.json"
    other.write_text(json.dumps({"tenants": {"reading": {"keys": ["r-1"], "weight": 2.5}}}))
    assert KeyRing(file=other).tenant_of("r-1") == Tenant(name="reading", weight=2.5)


@given(st.text(), st.sets(st.text("abc123", min_size=1), min_size=1))
def test_only_the_very_key_is_known(key: str, keys: set[str]) -> None:
    assert (KeyRing(sorted(keys)).tenant_of(key) is not None) == (key in keys)


def test_salts_are_the_tenants_and_the_processs(file: Path) -> None:
    ring, other = KeyRing(file=file), KeyRing(file=file)
    reading, writing = Tenant(name="reading"), Tenant(name="writing")
    assert ring.salt_of(reading) == ring.salt_of(ring.tenant_named("reading"))
    assert len({ring.salt_of(reading), ring.salt_of(writing), other.salt_of(reading)}) == 3


def test_reload(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    ring = KeyRing(file=file)
    salt = ring.salt_of(ring.tenant_named("reading"))
    file.write_text(FILE.replace("r-2", "r-3").replace("600", "900"))
    assert ring.reload()
    assert ring.tenant_of("r-2") is None
    found = ring.tenant_of("r-3")
    assert found is not None
    assert found.tokens_per_minute == 900
    assert ring.salt_of(found) == salt
    with caplog.at_level(logging.ERROR):
        for broken in ("[tenants.a\nkeys = ['secret-key']", "", "[tenants.a]\nkeys=['secret-key', 5]"):
            file.write_text(broken)
            assert not ring.reload()
            assert ring.tenant_of("r-3") == found
        file.unlink()
        assert not ring.reload()
    assert ring.tenant_of("r-3") == found
    assert caplog.text.count("stay as they are") == 4
    assert "secret-key" not in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tenants.a]\nkeys = ['k', 'k']", "also one of"),
        ("[tenants.a]\nkeys = ['k']\n[tenants.b]\nkeys = ['k']", "also one of"),
        ("[tenants.a]\nkeys = ['']", "empty"),
        ("[tenants.a]\nkeys = ['two words']", "header cannot carry"),
        ("[tenants.a]\nkeys = []", "no API key"),
        ("[tenants.a]\nkeys = ['k']\nweigth = 2", "weigth"),
        ("[tenants.a]\nkeys = ['k']\nweight = 0", "weight"),
        ("[tenants.a]\nkeys = ['k']\nweight = nan", "weight"),
        ("[tenants.a]\nkeys = ['k']\ntokens_per_minute = 0", "tokens_per_minute"),
        ("[tenants.a]\nweight = 1", "keys"),
        ("keys = ['k']", "keys"),
        ("[tenants", "no valid TOML"),
    ],
)
def test_a_file_that_makes_no_sense(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        KeyRing(file=path)


def test_a_file_that_others_can_read_is_noted(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    KeyRing(file=file)
    assert not caplog.text
    file.chmod(0o644)
    KeyRing(file=file)
    assert "Other users" in caplog.text


def test_the_example() -> None:
    ring = KeyRing(file=Path(__file__).parents[2] / "examples" / "api_keys.toml")
    assert ring.tenant_named("research").max_concurrent_requests == 32


def test_no_keys() -> None:
    ring = KeyRing()
    assert not ring.required
    assert ring.tenant_of("") is None
    assert not ring.reload()
