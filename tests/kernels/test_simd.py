"""The sixteen lanes of every instruction set against numpy, function by function, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from .probe import AVX2, AVX512, AVX512_BF16, Probe, emulated, processor_has

Floats = NDArray[np.float32]
seeds = st.integers(0, 2**32 - 1)

AVX512_FLAGS = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
VARIANTS: dict[str, tuple[str, list[str], tuple[str, ...]]] = {
    # name: header, compiler flags, what the processor must have
    "portable": ("portable", [], ()),
    "avx2": ("avx2", AVX2, ("avx2", "fma", "f16c")),
    "avx512": ("avx512", AVX512, AVX512_FLAGS),
    "avx512_vnni": ("avx512", AVX512_BF16, (*AVX512_FLAGS, "avx512_vnni", "avx512_bf16")),
    "avx512-emulated": ("avx512", emulated("avx512"), ("avx2", "fma", "f16c")),
    "avx512_vnni-emulated": ("avx512", emulated("avx512_bf16"), ("avx2", "fma", "f16c")),
}


def lacking(name: str) -> list[str]:
    return [flag for flag in VARIANTS[name][2] if not processor_has(flag)]


@pytest.mark.parametrize("name", VARIANTS)
def test_this_processor_has(name: str) -> None:
    if lacking(name):
        pytest.skip(f"{name} is not tested: this processor lacks {', '.join(lacking(name))}")


@pytest.fixture(scope="module", params=[name for name in VARIANTS if not lacking(name)])
def simd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Probe:
    header, flags, _ = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp("simd")
    source = Path(__file__).with_name("simd_probe.cpp")
    probe = Probe(source, folder / "probe.so", f'-DLOOSELEAF_SIMD="simd/{header}.h"', *flags)
    probe.fused = header != "portable"  # type: ignore[attr-defined]
    return probe


SPECIAL = np.array(
    [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38, 2**24 + 2, 0.5, 65504, 65520], np.float32
)


def lanes(low: float | None = None, high: float | None = None, count: int = 16) -> st.SearchStrategy[Floats]:
    """Any bit pattern, ordinary numbers and special ones among one another; or numbers of a range."""

    def draw(seed: int) -> Floats:
        rng = np.random.default_rng(seed)
        if low is not None and high is not None:
            return rng.uniform(low, high, count).astype(np.float32)
        kinds = [
            rng.integers(0, 2**32, count, np.uint32).view(np.float32),
            (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)).astype(np.float32),
            rng.choice(SPECIAL, count),
        ]
        return np.choose(rng.integers(0, 3, count), kinds)

    return seeds.map(draw)


def integers(
    dtype: type[np.integer[Any]], count: int = 16, bound: int | None = None
) -> st.SearchStrategy[NDArray[Any]]:
    limits = np.iinfo(dtype)
    low, high = (int(limits.min), int(limits.max)) if bound is None else (-bound, bound)
    return seeds.map(lambda seed: np.random.default_rng(seed).integers(low, high, count, dtype, endpoint=True))


def floats16() -> Floats:
    return np.empty(16, np.float32)


def same_bits(found: NDArray[Any], expected: NDArray[Any]) -> None:
    """Equal to the last bit and the sign of zero; any NaN is as good as another."""
    assert found.dtype == expected.dtype
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found[~nan].view(f"u{found.itemsize}"), expected[~nan].view(f"u{found.itemsize}"))


quick = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


# Overflow, 0/0 and the like are among the cases.
def silent() -> np.errstate:
    return np.errstate(all="ignore")


BINARY: dict[str, Callable[[Floats, Floats], Floats]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "max": lambda a, b: np.where(a > b, a, b),
    "min": lambda a, b: np.where(a < b, a, b),
}


@pytest.mark.parametrize("name", BINARY)
@quick
@given(a=lanes(), b=lanes())
def test_arithmetic(simd: Probe, name: str, a: Floats, b: Floats) -> None:
    with silent():
        same_bits(simd(name, floats16(), a, b), BINARY[name](a, b))


def exact_fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """Rounded once: the product is exact in double; the sum is rounded to odd, which survives rounding to single."""
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & (bits % 2 == 0)
    return np.where(inexact, (bits + np.where((error > 0) == (total > 0), 1, -1)).view(np.float64), total).astype(
        np.float32
    )


@quick
@given(a=lanes(), b=lanes(), c=lanes())
def test_fma_rounds_once_where_the_processor_can(simd: Probe, a: Floats, b: Floats, c: Floats) -> None:
    with silent():
        expected = exact_fma(a, b, c) if simd.fused else a * b + c  # type: ignore[attr-defined]
        same_bits(simd("fma", floats16(), a, b, c), expected)


@quick
@given(a=lanes())
def test_sums_have_one_tree_and_maxima_are_of_all_lanes(simd: Probe, a: Floats) -> None:
    tree = a
    with silent():
        while len(tree) > 1:
            tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
        same_bits(simd("sum", np.empty(1, np.float32), a), tree)
    if not np.isnan(a).any():
        assert simd("highest", np.empty(1, np.float32), a)[0] == a.max()


@quick
@given(a=lanes(), b=lanes(), c=lanes(), count=st.integers(-2, 18))
def test_choices_between_lanes(simd: Probe, a: Floats, b: Floats, c: Floats, count: int) -> None:
    same_bits(simd("first_lanes", floats16(), a, b, np.int32(count)), np.where(np.arange(16) < count, a, b))
    same_bits(simd("zero_below", floats16(), a, b, c), np.where(a < b, np.float32(0), c))
    same_bits(simd("set1", floats16(), a), np.full(16, a[0]))
    same_bits(simd("zero", floats16()), np.zeros(16, np.float32))


@quick
@given(a=lanes(-4e6, 4e6), n=integers(np.int32, bound=126))
def test_rounding_and_powers_of_two(simd: Probe, a: Floats, n: NDArray[np.int32]) -> None:
    np.testing.assert_array_equal(simd("round_even", floats16(), a), np.rint(a))
    with silent():
        same_bits(simd("scale_by_power", floats16(), a, n.astype(np.float32)), np.ldexp(a, n))


@quick
@given(bits=integers(np.uint16, 32), a=lanes())
def test_bfloat16(simd: Probe, bits: NDArray[np.uint16], a: Floats) -> None:
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    same_bits(simd("from_bf16", np.empty(1, np.float32), bits), wide[:1])
    same_bits(simd("load_bf16", floats16(), bits), wide[:16])
    same_bits(simd("load_bf16_pairs", np.empty(32, np.float32), bits), np.concatenate([wide[::2], wide[1::2]]))
    stored = simd("store_bf16", np.empty(16, np.uint16), a)
    same_bits((stored.astype(np.uint32) << 16).view(np.float32), torch.from_numpy(a).bfloat16().float().numpy())


@quick
@given(bits=integers(np.uint16), a=lanes(), near=lanes(-7e4, 7e4))
def test_half_precision(simd: Probe, bits: NDArray[np.uint16], a: Floats, near: Floats) -> None:
    same_bits(simd("load_half", floats16(), bits), bits.view(np.float16).astype(np.float32))
    same_bits(simd("from_half", np.empty(1, np.float32), bits), bits[:1].view(np.float16).astype(np.float32))
    with silent():
        for x in (*a[:4], *near[:4], *(near[:4] / np.float32(2**24))):
            found = simd("to_half", np.empty(1, np.float16), x)
            same_bits(found, np.array([x]).astype(np.float16))


@quick
@given(a=lanes(-32767, 32767), b=lanes(-127, 127))
def test_rounding_to_integers(simd: Probe, a: Floats, b: Floats) -> None:
    np.testing.assert_array_equal(simd("store_int16", np.empty(16, np.int16), a), np.rint(a))
    np.testing.assert_array_equal(simd("store_int8", np.empty(16, np.int8), b), np.rint(b))


@quick
@given(a=integers(np.int32), b=integers(np.int32))
def test_integers(simd: Probe, a: NDArray[np.int32], b: NDArray[np.int32]) -> None:
    out = np.empty(16, np.int32)
    np.testing.assert_array_equal(simd("add_int", out, a, b), a + b)
    np.testing.assert_array_equal(simd("set1_int", out, a), np.full(16, a[0]))
    np.testing.assert_array_equal(simd("zero_int", out), np.zeros(16))
    same_bits(simd("to_float", floats16(), a), a.astype(np.float32))


@quick
@given(
    acc=integers(np.int32, bound=2**30),
    weights=integers(np.int8, 32),
    nibbles=integers(np.uint16, 32),
    pair=integers(np.int16, 2, bound=32767),
)
def test_dot_products_of_pairs_are_exact(
    simd: Probe, acc: NDArray[Any], weights: NDArray[Any], nibbles: NDArray[Any], pair: NDArray[Any]
) -> None:
    def expected(numbers: NDArray[Any]) -> NDArray[Any]:
        return acc + numbers.astype(np.int32).reshape(16, 2) @ pair.astype(np.int32)

    out = np.empty(16, np.int32)
    np.testing.assert_array_equal(simd("dot_bytes", out, acc, weights, pair), expected(weights))
    np.testing.assert_array_equal(simd("dot_widened", out, acc, weights, pair), expected(weights))
    for which in range(4):
        found = simd(f"dot_nibbles{which}", out, acc, nibbles, pair)
        np.testing.assert_array_equal(found, expected(nibbles >> (4 * which) & 15))


@quick
@given(x=lanes(-87, 88))
def test_exp_is_within_two_units_in_the_last_place(simd: Probe, x: Floats) -> None:
    expected = np.exp(x.astype(np.float64))
    found = simd("exp", floats16(), x)
    assert (np.abs(found - expected) <= 2 * np.spacing(expected.astype(np.float32))).all()


def test_exp_everywhere(simd: Probe) -> None:
    x = np.linspace(-87, 88, 48_000, dtype=np.float32)
    found = np.concatenate([simd("exp", floats16(), x[i : i + 16]) for i in range(0, len(x), 16)])
    expected = np.exp(x.astype(np.float64))
    assert (np.abs(found - expected) <= 2 * np.spacing(expected.astype(np.float32))).all()


def test_exp_beyond_its_range(simd: Probe) -> None:
    x = np.array([-np.inf, -1e30, -87.5, 88, 89, 1e30, np.inf, np.nan, 0, -0.0, 1e-40, *[0] * 5], np.float32)
    found = simd("exp", floats16(), x)
    highest = found[3]
    assert (found[:3] == 0).all()
    assert (found[3:7] == highest).all()
    assert np.isfinite(highest)
    assert np.isnan(found[7])
    assert (found[8:] == 1).all()
