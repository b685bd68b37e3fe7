"""What a server does where it is told nothing: who goes first, and who may ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from looseleaf.cli.serve import ServedEngineOptions, ServerOptions, server_settings
from looseleaf.server.allowed_hosts import AllowedHosts
from looseleaf.server.http_server import own_machine_only
from looseleaf.server.identity import KeyRing
from looseleaf.server.serving import with_policy
from looseleaf.server.settings import ServerSettings


def ring(folder: Path, tenants: int) -> KeyRing:
    if not tenants:
        return KeyRing()
    file = folder / "keys.toml"
    file.write_text("".join(f'[tenants.t{i}]\nkeys = ["k{i}"]\n' for i in range(tenants)))
    file.chmod(0o600)
    return KeyRing(file=file)


def settings(**options: Any) -> ServerSettings:
    return server_settings(ServerOptions(**options), ServedEngineOptions())


@pytest.mark.parametrize(("tenants", "policy"), [(0, "fcfs"), (1, "fcfs"), (2, "fair")])
def test_several_tenants_get_fair_shares(tenants: int, policy: str, tmp_path: Path) -> None:
    keys = ring(tmp_path, tenants)
    assert with_policy(settings().engine.config, keys)["scheduling_policy"] == policy
    assert with_policy({"scheduling_policy": "priority"}, keys) == {"scheduling_policy": "priority"}


@pytest.mark.parametrize(
    ("options", "tenants", "checked"),
    [
        ({}, 0, True),
        ({"host": "localhost"}, 0, True),
        ({"allowed_host": ["box"]}, 0, True),
        ({"allowed_host": ["box", "*"]}, 0, False),
        ({"allow_unauthenticated": True}, 0, False),
        ({"host": "0.0.0.0", "allow_unauthenticated": True}, 0, False),
        ({}, 1, False),
    ],
)
def test_hosts_are_checked_where_nothing_else_is(
    options: dict[str, Any], tenants: int, checked: bool, tmp_path: Path
) -> None:
    app = own_machine_only(PlainTextResponse("in"), settings(**options), ring(tmp_path, tenants))
    assert isinstance(app, AllowedHosts) == checked


def test_a_quiet_server_logs_no_requests() -> None:
    quiet = server_settings(ServerOptions(log_requests=True), ServedEngineOptions(), quiet=True)
    assert (quiet.log_requests, quiet.log_level) == (False, "WARNING")
    assert settings(log_format="json").log_format == "json"
