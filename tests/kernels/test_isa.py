"""Which instruction set the kernels use: the best by default, the one that is named, or an error."""

from __future__ import annotations

import subprocess
import sys

import pytest

from looseleaf.kernels import native
from looseleaf.kernels.native import InstructionSetUnavailable, use_isa

needs_extension = pytest.mark.skipif(
    native._find_library() is None, reason="the native extension was not built on this machine"
)
ALL = ["portable", "avx2", "avx512", "avx512_bf16", "amx"]


@needs_extension
def test_the_environment_variable_is_obeyed_or_refused() -> None:
    available = native.available_isas()
    missing = [name for name in (*ALL, "sse9") if name not in available]
    names = ["", *available, *missing]
    program = """
import os, sys
from looseleaf.kernels import native
for name in sys.argv[1:]:
    os.environ[native.ISA_VARIABLE] = name
    for _ in range(2):
        native.is_available.cache_clear()
        try:
            print(native.isa())
        except native.InstructionSetUnavailable as error:
            print(error.name, error.available, error, sep="|")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, *names], capture_output=True, text=True, check=True, timeout=120
    )
    lines = done.stdout.splitlines()
    assert lines[::2] == lines[1::2]
    said = dict(zip(names, lines[::2], strict=True))
    assert said[""] == available[-1]
    assert all(said[name] == name for name in available)
    for name in missing:
        refused, known, message = said[name].split("|")
        assert (refused, known) == (name, str(available))
        assert message.startswith(f"This machine cannot run kernels for '{name}', which LOOSELEAF_ISA asks for.")
        assert all(each in message for each in available)


@needs_extension
def test_an_instruction_set_is_used_for_a_while() -> None:
    before = native.isa()
    for name in native.available_isas():
        with use_isa(name):
            assert native.isa() == name
            with pytest.raises(InstructionSetUnavailable), use_isa("abacus"):
                pass
            assert native.isa() == name
        assert native.isa() == before
    with pytest.raises(KeyError), use_isa("portable"):
        raise KeyError
    assert native.isa() == before


@needs_extension
def test_the_list_is_in_order_and_ends_with_the_best() -> None:
    available = native.available_isas()
    assert available == [name for name in ALL if name in available]
    assert available[0] == "portable"
    assert native.build_info().split()[0] in ("GCC", "Clang")


def test_without_the_extension_there_is_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "is_available", lambda: False)
    assert (native.isa(), native.available_isas(), native.build_info()) == (None, [], "")
    with pytest.raises(InstructionSetUnavailable, match="without the native extension"), use_isa("portable"):
        pass
