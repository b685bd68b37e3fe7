"""The example of the README runs, and shows all that it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from server.served import Served

EXAMPLE = Path(__file__).parents[2] / "examples" / "openai_client.py"


def test_the_example_runs(server: Served) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE), f"{server.url}/v1"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("== ") == 6
    for expected in ("prompt tokens came from the prefix cache", "get_weather({'city': ", "{'name': ", "\n3: "):
        assert expected in ran.stdout
