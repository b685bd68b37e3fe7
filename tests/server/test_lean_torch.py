"""Torch without its compiler's parts computes as ever, and they are there when somebody asks."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from looseleaf.server.lean_torch import defer_compiler_parts
defer_compiler_parts()
import torch
lazy = [sys.modules[name] for name in ("torch.export", "torch._meta_registrations")]
assert all(type(each).__name__ == "_LazyModule" for each in lazy), lazy

from looseleaf.kernels import native
native.is_available()
x = torch.arange(12.0).view(3, 4)
assert torch.equal((x @ x.T).softmax(-1).sum(-1).round(), torch.ones(3))
assert torch.empty(4, 6, device="meta").view(3, 8)[:, 2:].chunk(2, 1)[0].shape == (3, 3)
assert all(type(each).__name__ == "_LazyModule" for each in lazy), lazy

assert torch.export.ExportedProgram.__name__ == "ExportedProgram"
assert not hasattr(torch.export, "nothing_of_this_name")
assert type(torch.export) is type(sys)
defer_compiler_parts()  # too late: no effect
assert sum(type(each).__module__ == "looseleaf.server.lean_torch" for each in sys.meta_path) == 1
"""


def test_parts_are_deferred_until_used() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
