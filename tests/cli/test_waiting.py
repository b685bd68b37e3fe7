"""Threads that wait fall asleep, unless the user wants it otherwise."""

from __future__ import annotations

import os

import pytest

from looseleaf.cli.waiting import SPIN_COUNT, limit_spinning


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, str(SPIN_COUNT)),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_the_users_choice_is_left_alone(
    given: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    monkeypatch.setattr(os, "environ", environment | given)
    limit_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == expected
