"""What the compiled code has in memory when it configures AMX tiles, at every level of optimisation.

GCC 12 believes that ldtilecfg reads 8 bytes, and may drop the stores that fill the other 56. The compiler's own
assembly is run here with that one instruction replaced by a copy of the 64 bytes, so it needs no processor with AMX.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest

from .probe import CSRC, compiler, processor_has

SOURCE = """
#include "simd/tiles.h"
using namespace looseleaf;
// As the kernels do it: a configuration on the stack, filled in a loop, some of it known when compiled.
extern "C" void probe_configure(int first, int second) {
  TileConfig config;
  const int rows[8] = {first, first, second, second, first, second, 16, 16};
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = 64;
    config.rows[tile] = uint8_t(rows[tile]);
  }
  load_tile_config(config);
}
extern "C" void probe_constant() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = uint16_t(4 * (tile + 1));
    config.rows[tile] = uint8_t(tile + 1);
  }
  load_tile_config(config);
}
"""
# r11 holds the address; every register is kept.
CAPTURE = """
  .text
capture_config:
  pushq %rax
  pushq %rcx
  movq captured@GOTPCREL(%rip), %rcx
  .set offset, 0
  .rept 8
  movq offset(%r11), %rax
  movq %rax, offset(%rcx)
  .set offset, offset + 8
  .endr
  popq %rcx
  popq %rax
  ret
  .globl captured
  .bss
captured:
  .zero 64
  .section .note.GNU-stack,"",@progbits
"""

pytestmark = pytest.mark.skipif(not processor_has("sse2"), reason="AMX belongs to x86-64")


@pytest.fixture(scope="module", params=["-O0", "-O1", "-O2", "-O3"])
def probe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("tiles")
    source, assembly, library = folder / "probe.cpp", folder / "probe.s", folder / "probe.so"
    source.write_text(SOURCE)
    # Without a red zone, so that a call can stand in for the instruction.
    flags = [request.param, "-std=c++20", "-fPIC", "-mno-red-zone", "-mamx-tile", "-mamx-bf16", f"-I{CSRC}"]
    done = subprocess.run(
        [compiler(), *flags, "-S", str(source), "-o", str(assembly)], capture_output=True, text=True, check=False
    )
    if done.returncode and "amx" in done.stderr:
        pytest.skip("this compiler does not know AMX")
    assert done.returncode == 0, done.stderr
    text, replaced = re.subn(
        r"^\s*ldtilecfg\s+(\S+)$", r"  leaq \1, %r11\n  call capture_config", assembly.read_text(), flags=re.MULTILINE
    )
    assert replaced >= 1
    assembly.write_text(text + CAPTURE)
    subprocess.run([compiler(), "-shared", str(assembly), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def captured(probe: ctypes.CDLL) -> bytes:
    return bytes((ctypes.c_char * 64).in_dll(probe, "captured"))


def configuration(row_bytes: list[int], rows: list[int]) -> bytes:
    widths = b"".join(x.to_bytes(2, "little") for x in row_bytes)
    return bytes([1, *[0] * 15]) + widths.ljust(32, b"\0") + bytes(rows).ljust(16, b"\0")


def test_all_64_bytes_are_in_memory(probe: ctypes.CDLL) -> None:
    for first, second in [(16, 3), (1, 1)]:
        probe.probe_configure(first, second)
        rows = [first, first, second, second, first, second, 16, 16]
        assert captured(probe) == configuration([64] * 8, rows)
    probe.probe_constant()
    assert captured(probe) == configuration([4, 8, 12, 16, 20, 24, 28, 32], [1, 2, 3, 4, 5, 6, 7, 8])


def test_tiles_are_configured_through_that_function_alone() -> None:
    calls = {path: path.read_text().count("_tile_loadconfig(") for path in CSRC.rglob("*") if path.is_file()}
    emulation = CSRC / "emulate"
    assert [path for path, n in calls.items() if n and emulation not in path.parents] == [CSRC / "simd" / "tiles.h"]
    assert calls[Path(CSRC, "simd", "tiles.h")] == 1
