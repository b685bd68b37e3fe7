"""Packed linear layers against float64, and what must hold to the bit."""

from __future__ import annotations

import math
from collections.abc import Iterator

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from looseleaf.kernels import native
from looseleaf.kernels.linear import (
    GgufFormat,
    PackedLinear,
    WeightType,
    pack,
    pack_gate_up,
    pack_gguf,
    pack_gguf_gate_up,
)
from native_case import ISAS

pytestmark = pytest.mark.skipif(
    native._find_library() is None, reason="the native extension was not built on this machine"
)

TYPES: tuple[WeightType, ...] = ("float32", "bfloat16", "int8")
FORMATS: tuple[GgufFormat, ...] = ("Q8_0", "Q4_0", "Q4_1", "Q4_K")


def needs(isa: str) -> None:
    assert native.is_available()
    if isa not in torch.ops.looseleaf.available_isas().split(","):
        pytest.skip(f"this machine cannot run {isa}")


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    needs(request.param)
    with native.use_isa(request.param):
        yield request.param


def gguf_blocks(format: GgufFormat, rows: int, inputs: int, seed: int) -> np.ndarray:
    """Blocks of random bits, but with finite scales of ordinary size."""
    values, size = {"Q8_0": (32, 34), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q4_K": (256, 144)}[format]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows, inputs // values, size), dtype=np.uint8)
    for at in range(0, 2 if format in ("Q8_0", "Q4_0") else 4, 2):
        scales = random.normal(0, 1e-3 if format == "Q4_K" else 0.01, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def example(kind: str, outputs: int, inputs: int, seed: int) -> PackedLinear:
    if kind in FORMATS:
        return pack_gguf(torch.from_numpy(gguf_blocks(kind, outputs, inputs, seed)), kind, inputs)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    return pack(torch.randn(outputs, inputs, generator=generator), kind)  # type: ignore[arg-type]


def close(result: Tensor, x: Tensor, packed: PackedLinear, isa: str, *added: Tensor) -> None:
    """Within the rounding of a chain of K fma, and of the activations where they are rounded."""
    weight = packed.dequantize().double()
    x = x.double()
    sizes = x.abs() @ weight.abs().T
    rounded = torch.zeros(())
    if packed.type == "bfloat16" and isa in ("avx512_bf16", "amx"):
        rounded = 2**-8 * sizes
    if packed.type in ("int8", "int4"):
        # Each activation is off by half a step at most: 1/32767 of the largest of its 32 (1 + 1e-5: float32 scales).
        padding = (0, -x.shape[1] % 32)
        largest = torch.nn.functional.pad(x.abs(), padding).view(len(x), -(-x.shape[1] // 32), 32).amax(-1)
        rounded = (
            0.50001
            / 32767
            * largest
            @ torch.nn.functional.pad(weight.abs(), padding).view(len(weight), -1, 32).sum(-1).T
        )
    if packed.minima is not None:  # the code's share of w and the minimum may cancel; their roundings do not
        minima = packed.minima.double().abs().view(-1, packed.in_features // 32, 16).transpose(1, 2).flatten(0, 1)
        sizes += 2 * x.abs() @ minima[: len(weight)].repeat_interleave(32, 1).T
    # None of n roundings in a chain is larger than 2^-24 of the sum of absolute products (2^-23: two factors rounded).
    bound = rounded + (x.shape[1] + 8) * 2**-23 * (sizes + sum(part.abs() for part in added))
    exact = x @ weight.T + sum(added)
    assert ((result.double() - exact).abs() <= bound + 1e-30).all()


@given(
    rows=st.integers(0, 40),
    outputs=st.integers(1, 70),
    inputs=st.integers(1, 130),
    seed=st.integers(0, 2**32 - 1),
    bias=st.booleans(),
    add=st.booleans(),
)
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("isa_name", ISAS)
def test_any_shape_with_bias_and_residual(
    isa_name: str, type: WeightType, rows: int, outputs: int, inputs: int, seed: int, bias: bool, add: bool
) -> None:
    needs(isa_name)
    with native.use_isa(isa_name):
        generator = torch.Generator().manual_seed(seed)
        # Views with room between rows, as slices of fused tensors have.
        weight = torch.randn(outputs, inputs + 3, generator=generator)[:, :inputs]
        x = torch.randn(rows, inputs + 5, generator=generator)[:, 2 : inputs + 2]
        before = torch.randn(rows, outputs + 4, generator=generator)
        offset = torch.randn(outputs, generator=generator) if bias else torch.zeros(outputs)
        packed = pack(weight, type, offset if bias else None)
        if type != "int8":
            assert torch.equal(packed.dequantize(), weight.to(getattr(torch, type)).float())
        after = before.clone()
        packed(x, after[:, 1 : outputs + 1], add=add)
        assert torch.equal(after[:, 0], before[:, 0])
        assert torch.equal(after[:, outputs + 1 :], before[:, outputs + 1 :])
        close(after[:, 1 : outputs + 1], x, packed, isa_name, before[:, 1 : outputs + 1] * add, offset)


@pytest.mark.parametrize("kind", [*TYPES, *FORMATS])
@pytest.mark.parametrize("outputs", [176, 37])
def test_a_row_is_the_same_to_the_bit_in_any_company_on_any_threads(isa: str, kind: str, outputs: int) -> None:
    packed = example(kind, outputs, 256, seed=1)
    x = torch.randn(70, 256, generator=torch.Generator().manual_seed(2))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = torch.cat([packed(row[None]) for row in x])
        for rows in range(1, 71):
            torch.set_num_threads(1 + rows % 2)
            assert torch.equal(packed(x[:rows]), alone[:rows])
        torch.set_num_threads(2)
        many = x.repeat(16, 1)  # more than are worked on at once
        assert torch.equal(packed(many), alone.repeat(16, 1))
    finally:
        torch.set_num_threads(threads)
    close(alone, x, packed, isa)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("kind", [*TYPES, *FORMATS])
@pytest.mark.parametrize("outputs", [64, 41])
@pytest.mark.parametrize("rows", [1, 7, 33])
def test_gate_and_up_give_silu_times_product(kind: str, outputs: int, rows: int) -> None:
    x = torch.randn(rows, 256, generator=torch.Generator().manual_seed(2))
    if kind in FORMATS:
        blocks = [torch.from_numpy(gguf_blocks(kind, outputs, 256, seed)) for seed in (3, 4)]  # type: ignore[arg-type]
        single = [pack_gguf(part, kind, 256) for part in blocks]  # type: ignore[arg-type]
        pair = pack_gguf_gate_up(*blocks, kind, 256)  # type: ignore[arg-type]
    else:
        weights = [torch.randn(outputs, 256, generator=torch.Generator().manual_seed(seed)) for seed in (3, 4)]
        biases = [torch.randn(outputs, generator=torch.Generator().manual_seed(seed)) for seed in (5, 6)]
        single = [pack(weight, kind, bias) for weight, bias in zip(weights, biases, strict=True)]  # type: ignore[arg-type]
        pair = pack_gate_up(*weights, kind, *biases)  # type: ignore[arg-type]
    assert torch.equal(pair.dequantize(), torch.cat([part.dequantize() for part in single]))
    gate, up = (part(x) for part in single)
    # The sums are the same ones; exp is within 2 units in the last place, then a sum, a quotient and a product.
    torch.testing.assert_close(pair(x), torch.nn.functional.silu(gate) * up, rtol=8 * 2**-23, atol=1e-33)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("outputs", [48, 21])
def test_gguf_blocks_stand_for_what_the_gguf_package_says(format: GgufFormat, outputs: int) -> None:
    assert native.is_available()
    blocks = gguf_blocks(format, outputs, 768, seed=7)
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[format])
    packed = pack_gguf(torch.from_numpy(blocks), format, 768)
    assert torch.equal(packed.dequantize(), torch.from_numpy(expected))
    scale_bytes = {"Q8_0": 2, "Q4_0": 2, "Q4_1": 4, "Q4_K": 8}[format]
    code_bytes = 32 if format == "Q8_0" else 16
    assert packed.nbytes == -(-outputs // 16) * 16 * 768 // 32 * (code_bytes + scale_bytes)


@given(
    inputs=st.integers(1, 100),
    size=st.sampled_from([1e-6, 1e-3, 1.0, 1e4]),
    seed=st.integers(0, 2**32 - 1),
    half=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_int8_is_off_by_half_a_scale_at_most(inputs: int, size: float, seed: int, half: bool) -> None:
    assert native.is_available()
    weight = torch.randn(19, inputs, generator=torch.Generator().manual_seed(seed)) * size
    if half:
        weight = weight.bfloat16()
    packed = pack(weight, "int8")
    weight = weight.float()
    padded = torch.nn.functional.pad(weight, (0, -inputs % 32)).view(19, -1, 32)
    # The scale itself is a half-precision number: off by 2^-11 of itself, or 2^-25 where it is subnormal.
    half_step = padded.abs().amax(-1) / 127 * (0.5 + 127 * 2**-24) * (1 + 2**-11) + 127 * 2**-25
    error = (packed.dequantize() - weight).abs()
    assert (error <= half_step.repeat_interleave(32, 1)[:, :inputs]).all()


@pytest.mark.usefixtures("isa")
def test_the_embedding_lookup_gives_rows_of_the_weight() -> None:
    weight = torch.randn(67, 40, generator=torch.Generator().manual_seed(8)).bfloat16()
    ids = torch.tensor([66, 0, 5, 5, 16])
    assert torch.equal(pack(weight, "bfloat16").rows(ids), weight.float()[ids])
    assert pack(weight, "bfloat16").rows(ids[:0]).shape == (0, 40)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("kind", [*TYPES, *FORMATS])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_in_its_row(kind: str, poison: float) -> None:
    packed = example(kind, 40, 256, seed=9)
    x = torch.randn(9, 256, generator=torch.Generator().manual_seed(10))
    clean = packed(x)
    x[4, 77] = poison
    result = packed(x)
    others = torch.arange(9) != 4
    assert torch.equal(result[others], clean[others])
    assert not result[4].isfinite().any()


def test_activations_of_extreme_size(isa: str) -> None:
    packed = pack(torch.randn(20, 64, generator=torch.Generator().manual_seed(11)), "int8")
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(12))
    x = x * torch.tensor([1e-38, 1e-20, 1e30, 0.0])[:, None]
    close(packed(x), x, packed, isa)


def test_bfloat16_activations_are_widened() -> None:
    packed = example("bfloat16", 20, 64, seed=13)
    x = torch.randn(3, 64).bfloat16()
    assert torch.equal(packed(x), packed(x.float()))


def test_bad_weights_are_refused() -> None:
    assert native.is_available()
    good = torch.randn(32, 64)
    blocks = torch.from_numpy(gguf_blocks("Q4_1", 4, 64, seed=0))
    with pytest.raises(ValueError, match="two dimensions"):
        pack(good[0], "float32")
    with pytest.raises(ValueError, match="neither of them 0"):
        pack(good[:, :0], "float32")
    with pytest.raises(ValueError, match="contiguous"):
        pack(good.T, "bfloat16")
    with pytest.raises(ValueError, match="overlap"):
        pack(torch.as_strided(good, (4, 64), (1, 1)), "bfloat16")
    with pytest.raises(ValueError, match="dtype"):
        pack(good.double(), "float32")
    with pytest.raises(ValueError, match="no weight type 'int3'"):
        pack(good, "int3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="GGUF blocks only"):
        pack(good, "int4")
    with pytest.raises(ValueError, match="differ in shape"):
        pack_gate_up(good, good[:16], "float32")
    with pytest.raises(ValueError, match="bias of 32 outputs"):
        pack(good, "float32", torch.zeros(31))
    for bad in (math.nan, math.inf, -math.inf, 1e30):
        broken = good.clone()
        broken[31, 63] = bad
        with pytest.raises(ValueError, match="finite"):
            pack(broken, "int8")
    with pytest.raises(ValueError, match="'Q5_1' cannot be packed"):
        pack_gguf(blocks, "Q5_1", 64)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="uint8 rows of 60 bytes"):
        pack_gguf(blocks, "Q4_1", 96)
    with pytest.raises(ValueError, match="uint8 rows"):
        pack_gguf(blocks.view(torch.int8), "Q4_1", 64)
    with pytest.raises(ValueError, match="uint8 rows"):
        pack_gguf(blocks, "Q4_K", 64)


def test_bad_activations_and_results_are_refused() -> None:
    packed = example("bfloat16", 32, 64, seed=14)
    x = torch.randn(3, 64)
    for bad in (x[:, :63], x[0], x.double(), torch.randn(64, 3).T, x.to("meta"), torch.randn(3, 65)):
        with pytest.raises(ValueError, match=r"linear: "):
            packed(bad)
    for out in (torch.zeros(3, 31), torch.zeros(2, 32), torch.zeros(3, 32).double(), torch.zeros(32, 3).T):
        with pytest.raises(ValueError, match="linear: "):
            packed(x, out)
    with pytest.raises(ValueError, match="overlap"):
        packed(x, torch.zeros(1, 32).expand(3, 32))
    with pytest.raises(ValueError, match="add needs"):
        packed(x, add=True)
    with pytest.raises(ValueError, match="cannot add"):
        pack_gate_up(torch.randn(8, 64), torch.randn(8, 64), "float32")(x, torch.zeros(3, 8), add=True)
    for ids in ([32], [-1], [0, 32]):
        with pytest.raises(IndexError, match="outside 32 rows"):
            packed.rows(torch.tensor(ids))
    with pytest.raises(ValueError, match="int64"):
        packed.rows(torch.zeros(1, dtype=torch.int32))


def test_the_native_boundary_checks_for_itself() -> None:
    packed = example("int8", 32, 64, seed=15)
    assert packed.scales is not None
    x, y = torch.randn(2, 64), torch.zeros(2, 32)
    good = [x, packed.weight, packed.scales, None, None, "int8", 32, 64, False, y, "store"]
    torch.ops.looseleaf.linear(*good)
    unaligned = torch.zeros(packed.weight.numel() + 64, dtype=torch.uint8)[1:]
    for at, bad in [
        (1, packed.weight[:-1]),
        (1, packed.weight.view(torch.int8)),
        (1, unaligned[: packed.weight.numel()]),
        (2, packed.scales[1:]),
        (2, packed.scales.float()),
        (2, None),
        (3, packed.scales),
        (4, torch.zeros(31)),
        (5, "int4"),
        (5, "int9"),
        (6, 33),
        (6, 0),
        (6, 2**62),
        (7, -64),
        (7, 2**62),
        (8, True),
        (10, "silu_mul"),
        (10, "multiply"),
    ]:
        arguments = list(good)
        arguments[at] = bad
        with pytest.raises(RuntimeError):
            torch.ops.looseleaf.linear(*arguments)
