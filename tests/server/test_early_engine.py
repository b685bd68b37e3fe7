"""The engine's process that starts before anybody knows what it is for: taken once, and never left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from looseleaf.server import early_engine


def test_it_is_told_its_folder_and_taken_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = f"import sys; open({str(told)!r}, 'w').write(sys.stdin.read())"
    monkeypatch.setattr(early_engine, "COMMAND", (sys.executable, "-c", program))
    assert early_engine.take(tmp_path) is None
    early_engine.begin()
    process = early_engine.take(tmp_path)
    assert process is not None
    assert process.wait(30) == 0
    assert told.read_text() == f"{tmp_path}\n"
    assert early_engine.take(tmp_path) is None


def test_one_that_has_ended_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(early_engine, "COMMAND", (sys.executable, "-c", ""))
    early_engine.begin()
    assert early_engine._early is not None
    early_engine._early.wait(30)
    assert early_engine.take(tmp_path) is None


@pytest.mark.parametrize("seconds", [0, 1])
def test_it_ends_with_a_command_that_does_not_need_it(seconds: int) -> None:
    program = (
        "import os, time; from looseleaf.server import early_engine; early_engine.begin(); "
        f"print(early_engine._early.pid, flush=True); time.sleep({seconds}); os._exit(3)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    deadline = time.monotonic() + 30
    while psutil.pid_exists(int(done.stdout)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not psutil.pid_exists(int(done.stdout))
