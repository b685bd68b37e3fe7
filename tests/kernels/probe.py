"""C++ that tests alone need, compiled as they run, and called through ctypes on numpy arrays."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

CSRC = Path(__file__).parents[2] / "csrc"
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
AVX512_BF16 = [*AVX512, "-mavx512vnni", "-mavx512bf16"]
AMX = [*AVX512_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"]


def processor_has(*flags: str) -> bool:
    return platform.machine() == "x86_64" and set(flags) <= set(Path("/proc/cpuinfo").read_text().split())


def emulated(isa: str) -> list[str]:
    """The flags that put the emulation of `isa` before a source file, as the build does."""
    return [*AVX2, f"--include={CSRC}/emulate/{isa}.h", "-Wno-psabi", "-Wno-ignored-attributes"]


def compiler() -> str:
    found = shutil.which("g++") or shutil.which("c++")
    if found is None:
        pytest.skip("no C++ compiler on this machine")
    return found


def compile_cpp(source: Path, target: Path, *flags: str) -> None:
    command = [compiler(), "-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", f"-I{CSRC}", *flags]
    subprocess.run([*command, str(source), "-o", str(target)], check=True, timeout=300)


class Probe:
    """A shared library of functions `probe_NAME(a, b, c, out)`."""

    def __init__(self, source: Path, target: Path, *flags: str) -> None:
        compile_cpp(source, target, "-shared", "-fPIC", *flags)
        self.library = ctypes.CDLL(str(target))

    @classmethod
    def load(cls, target: Path) -> Probe:
        """One that has been compiled."""
        probe = cls.__new__(cls)
        probe.library = ctypes.CDLL(str(target))
        return probe

    def __call__(self, name: str, out: Any, *arguments: NDArray[Any] | np.generic) -> NDArray[Any]:
        """Call with up to three arrays; `out` (shape and dtype, e.g. an empty array) is filled and returned."""
        given = [np.ascontiguousarray(x) for x in arguments] + [np.zeros(1)] * (3 - len(arguments))
        getattr(self.library, f"probe_{name}")(*(ctypes.c_void_p(x.ctypes.data) for x in (*given, out)))
        return out  # type: ignore[no-any-return]
