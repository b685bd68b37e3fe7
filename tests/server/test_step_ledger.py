"""What a process works on is known after its end, however it ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from looseleaf.server.step_ledger import StepLedger, read_ledger


def test_it_tells_what_is_being_worked_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    assert read_ledger(path) == {}
    with StepLedger(path) as ledger:
        assert read_ledger(path) == {}
        for places in ({"a": 5, "b": 7}, {"b": 8}, {"ü" * 1000: 2**40}):
            ledger.begin(places)
            assert read_ledger(path) == places
            ledger.end()
            assert read_ledger(path) == {}
        with ledger.adding("c"):
            assert read_ledger(path) == {"c": -1}
        assert read_ledger(path) == {}
        with pytest.raises(ValueError, match="it fails"), ledger.adding("d"):
            raise ValueError("it fails")
        assert read_ledger(path) == {"d": -1}
    path.write_bytes(b"\xff" * 9)
    assert read_ledger(path) == {}


def test_it_outlives_its_process(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from looseleaf.server.step_ledger import StepLedger
StepLedger(Path(sys.argv[1])).begin({"it": 3})
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "ledger"
    subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert read_ledger(path) == {"it": 3}
