"""The lab works without tensors: nothing that it imports brings torch, or what serves."""

from __future__ import annotations

import subprocess
import sys

PROBE = """
import importlib, pkgutil, sys
import looseleaf.replay
for module in pkgutil.walk_packages(looseleaf.replay.__path__, "looseleaf.replay."):
    importlib.import_module(module.name)
heavy = ("torch", "looseleaf.engine", "looseleaf.models", "looseleaf.kernels", "looseleaf.server")
print([name for name in sys.modules if name in heavy or name.startswith(tuple(each + "." for each in heavy))])
"""


def test_no_module_of_the_lab_brings_tensors() -> None:
    found = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
