"""Decoding GGUF blocks natively gives, to the bit, what the gguf package gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.kernels import gguf, native

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the native extension is not built")


def random_blocks(encoding: str, rows: int, blocks: int, seed: int) -> np.ndarray:
    """Any bytes are a valid block; the scales among them may be infinite or not a number."""
    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[encoding]]
    return np.random.default_rng(seed).integers(0, 256, (rows, blocks * size), np.uint8)


@pytest.mark.parametrize("encoding", gguf.NATIVE_ENCODINGS)
@given(rows=st.integers(1, 70), blocks=st.integers(1, 5), seed=st.integers(0, 10**6))
def test_every_bit_is_that_of_the_gguf_package(encoding: str, rows: int, blocks: int, seed: int) -> None:
    encoded = random_blocks(encoding, rows, blocks, seed)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = torch.from_numpy(np.array(dequantize(encoded, GGMLQuantizationType[encoding]), np.float32))
    for out in (torch.empty_like(expected), torch.empty_like(expected, dtype=torch.bfloat16)):
        gguf.decode(torch.from_numpy(encoded), encoding, out)
        wanted = expected.to(out.dtype)
        number = ~wanted.isnan()
        assert torch.equal(out.isnan(), wanted.isnan())
        bits = torch.int32 if out.dtype == torch.float32 else torch.int16
        assert torch.equal(out[number].view(bits), wanted[number].view(bits))


@pytest.mark.parametrize(
    ("encoded", "encoding", "out"),
    [
        (torch.zeros(2, 20, dtype=torch.uint8), "Q4_1", torch.empty(2, 64)),
        (torch.zeros(2, 20, dtype=torch.uint8), "Q4_1", torch.empty(3, 32)),
        (torch.zeros(2, 20, dtype=torch.uint8), "Q4_1", torch.empty(2, 31)),
        (torch.zeros(2, 20, dtype=torch.uint8), "Q4_1", torch.empty(2, 32, dtype=torch.float64)),
        (torch.zeros(2, 20, dtype=torch.int8), "Q4_1", torch.empty(2, 32)),
        (torch.zeros(20, 2, dtype=torch.uint8).T, "Q4_1", torch.empty(2, 32)),
        (torch.zeros(2, 20, dtype=torch.uint8), "Q4_1", torch.empty(32, 2).T),
        (torch.zeros(40, dtype=torch.uint8), "Q4_1", torch.empty(2, 32)),
        (torch.zeros(2, 20, dtype=torch.uint8), "IQ1_S", torch.empty(2, 32)),
    ],
)
def test_what_does_not_fit_is_refused(encoded: torch.Tensor, encoding: str, out: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="decode_gguf"):
        gguf.decode(encoded, encoding, out)


def test_other_encodings_are_left_to_the_package() -> None:
    assert not gguf.can_decode("IQ1_S")
    assert gguf.can_decode("Q4_K")
