"""The emulated AMX and AVX512-BF16 instructions against the pseudo-code of Intel's manual, written down in numpy."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from .probe import Probe, emulated, processor_has
from .test_simd import Floats, exact_fma, lanes, same_bits, silent

pytestmark = pytest.mark.skipif(not processor_has("avx2", "fma", "f16c"), reason="the emulation is written with AVX2")

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 16)
quick = settings(max_examples=25, deadline=None)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("emulation") / "probe.so"
    Probe(Path(__file__).with_name("emulation_probe.cpp"), target, "-DLOOSELEAF_EMULATED", *emulated("amx"))
    return target


@pytest.fixture(scope="module")
def probe(library: Path) -> Probe:
    return Probe.load(library)


def flush(x: Floats) -> Floats:
    """Denormal numbers count as zero, keeping their sign."""
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def add_product(acc: Floats, x: Floats, y: Floats) -> Floats:
    with silent():
        return flush(exact_fma(*np.broadcast_arrays(flush(x), flush(y), flush(acc))))


def bf16_pairs(rng: np.random.Generator, *shape: int) -> tuple[NDArray[np.uint16], Floats, Floats]:
    """[…, 2] numbers in bfloat16, some denormal, some without bound; the first and second of each pair as float32."""
    x = rng.standard_normal((*shape, 2)) * 10.0 ** rng.choice([0, 0, 3, -19, -39], (*shape, 2))
    bits = (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    return bits, wide[..., 0], wide[..., 1]


@quick
@given(seed=seeds, m=sizes, k=sizes, n=sizes)
def test_bfloat16_tiles(probe: Probe, seed: int, m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    a, a_even, a_odd = bf16_pairs(rng, m, k)
    b, b_even, b_odd = bf16_pairs(rng, k, n)
    c = rng.standard_normal((m, n)).astype(np.float32)
    even = odd = np.zeros((m, n), np.float32)
    for i in range(k):
        even = add_product(even, a_even[:, i, None], b_even[i])
        odd = add_product(odd, a_odd[:, i, None], b_odd[i])
    with silent():
        expected = flush(c + flush(even + odd))
    same_bits(probe("dpbf16ps", c.copy(), np.array([m, k, n], np.int32), a, b), expected)


@pytest.mark.parametrize(("name", "first", "second"), [
    ("dpbssd", np.int8, np.int8), ("dpbsud", np.int8, np.uint8), ("dpbusd", np.uint8, np.int8),
    ("dpbuud", np.uint8, np.uint8),
])  # fmt: skip
@quick
@given(seed=seeds, m=sizes, k=sizes, n=sizes)
def test_byte_tiles(probe: Probe, name: str, first: Any, second: Any, seed: int, m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 256, (m, k, 4), np.uint8).view(first)
    b = rng.integers(0, 256, (k, n, 4), np.uint8).view(second)
    c = rng.integers(-(2**31), 2**31, (m, n), np.int64).astype(np.int32)
    total = c + np.einsum("mki,kni->mn", a.astype(np.int64), b.astype(np.int64))
    found = probe(name, c.copy(), np.array([m, k, n], np.int32), a, b)
    np.testing.assert_array_equal(found, total.astype(np.int32))


@quick
@given(seed=seeds)
def test_bfloat16_dot_products_add_the_odd_number_of_a_pair_first(probe: Probe, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, a_even, a_odd = bf16_pairs(rng, 16)
    b, b_even, b_odd = bf16_pairs(rng, 16)
    acc = rng.standard_normal(16).astype(np.float32)
    expected = add_product(add_product(acc, a_odd, b_odd), a_even, b_even)
    same_bits(probe("dot_bf16", np.empty(16, np.float32), acc, a, b), expected)


@quick
@given(x=lanes(count=32))
def test_rounding_to_bfloat16_flushes(probe: Probe, x: Floats) -> None:
    found = probe("round_bf16", np.empty(32, np.uint16), x)
    expected = torch.from_numpy(flush(x)).bfloat16().float().numpy()
    same_bits((found.astype(np.uint32) << 16).view(np.float32), expected)


def test_masked_lanes_are_not_touched(probe: Probe) -> None:
    page = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    whole = np.frombuffer(page, np.float32)
    base = whole.ctypes.data + mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(base), mmap.PAGESIZE, 0) == 0
    end = whole[: mmap.PAGESIZE // 4][-5:]
    end[:] = range(5)
    out = probe("masked_copy", np.full(16, -1, np.float32), end, np.array([0b11011], np.uint16))
    assert out.tolist() == [0, 1, -1, 3, 4] + [-1] * 11
    assert libc.mprotect(ctypes.c_void_p(base), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE) == 0


@pytest.mark.parametrize(("name", "message"), [
    ("unconfigured", "configured none"), ("released", "configured none"), ("absent_tile", "without rows"),
    ("palette", "palettes"), ("reserved", "reserved"), ("rows", "more than 16"), ("bytes", "more than 16"),
    ("ninth_tile", "eight tiles"), ("same_tile", "different tiles"), ("shapes", "do not fit"), ("alignment", "aligned"),
])  # fmt: skip
def test_misuse_stops_the_program(library: Path, name: str, message: str) -> None:
    script = f"import ctypes; ctypes.CDLL({str(library)!r}).misuse_{name}()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode < 0
    assert message in done.stderr
