"""A web page that calls itself this machine is not let in."""

from __future__ import annotations

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from looseleaf.server.allowed_hosts import AllowedHosts


def client(*names: str) -> TestClient:
    return TestClient(AllowedHosts(PlainTextResponse("in"), names), base_url="http://127.0.0.1")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8000", "127.9.9.9", "localhost:8000", "LocalHost", "[::1]:8000", "me.localhost", "Box:80"],
)
def test_this_machine_is_let_in_by_any_of_its_names(host: str) -> None:
    assert client("box").get("/", headers={"Host": host}).status_code == 200
    assert client("box").get("/", headers={"Origin": f"http://{host}"}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "192.168.1.5", "[", "", "a b"]
)
def test_others_are_not(host: str) -> None:
    found = client("box").get("/", headers={"Host": host})
    assert found.status_code == 403
    assert found.json()["error"]["code"] == "host_not_allowed"
    assert client("box").get("/", headers={"Origin": f"https://{host}"}).status_code == 403


def test_a_page_without_a_name() -> None:
    assert client().get("/", headers={"Origin": "null"}).status_code == 403
