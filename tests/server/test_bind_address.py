"""Public addresses need keys, and what cannot be listened on is said."""

from __future__ import annotations

import socket

import pytest

from looseleaf.errors import ConfigurationError
from looseleaf.server.bind_address import bind, check_exposure, is_loopback, url_of


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert is_loopback(host)
    check_exposure(host, has_keys=False, allow_unauthenticated=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.4", "example.org", "localhost.example.org"])
def test_other_addresses_do(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigurationError, match="no API keys"):
        check_exposure(host, has_keys=False, allow_unauthenticated=False)
    check_exposure(host, has_keys=True, allow_unauthenticated=False)
    check_exposure(host, has_keys=False, allow_unauthenticated=True)


def test_a_port_in_use_and_a_free_one() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        assert url_of(first) == f"http://127.0.0.1:{port}"
        with pytest.raises(ConfigurationError, match=f"port {port}: address already in use") as caught:
            bind("127.0.0.1", port)
        assert "--port" in caught.value.hint
    with bind("127.0.0.1", port) as again, socket.create_connection(again.getsockname()):
        pass


def test_an_address_of_another_machine() -> None:
    with pytest.raises(ConfigurationError, match=r"192\.0\.2\.1"):
        bind("192.0.2.1", 0)
    with pytest.raises(ConfigurationError, match="no address of this machine"):
        bind("no.such.host.invalid", 0)
