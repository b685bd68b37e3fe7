"""The measuring of the machine: what is read is really read, and the figures are figures."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.kernels import machine, native
from looseleaf.kernels.native import use_isa

needs_extension = pytest.mark.skipif(
    native._find_library() is None, reason="the native extension was not built on this machine"
)


@needs_extension
@given(
    size=st.one_of(st.integers(0, 2000), st.integers(10_000, 100_000)),
    offset=st.integers(0, 70),
    seed=st.integers(0, 99),
)
@settings(max_examples=50, deadline=None)
def test_every_byte_is_read_whichever_the_instruction_set_and_the_threads(size: int, offset: int, seed: int) -> None:
    assert native.is_available()
    data = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, offset + size, dtype=np.uint8))[offset:]
    padded = np.pad(data.numpy(), (0, -size % 4))
    expected = int(padded.view(np.uint32).sum(dtype=np.uint32)) if size else 0
    for isa in native.available_isas():
        for threads in (1, 2):
            with use_isa(isa), machine.torch_threads(threads):
                assert torch.ops.looseleaf.read_memory(data) == expected


@needs_extension
def test_what_cannot_be_read_in_one_go_is_refused() -> None:
    assert native.is_available()
    with pytest.raises(RuntimeError, match="contiguous"):
        torch.ops.looseleaf.read_memory(torch.zeros(4, 4).t())


@pytest.mark.parametrize("extension", [pytest.param(True, marks=needs_extension), False])
def test_figures_are_plausible(extension: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not extension:
        monkeypatch.setattr(native, "is_available", lambda: False)
    threads = torch.get_num_threads()
    assert 0 < machine.read_bandwidth(100_001, 1, seconds=0.01) < math.inf
    assert 0 < machine.tensor_read_bandwidth(torch.ones(33, 3), seconds=0.01) < math.inf
    for dtype in (torch.float32, torch.bfloat16):
        assert 0 < machine.matmul_rate(dtype, 1, seconds=0.01) < math.inf
    assert torch.get_num_threads() == threads


def test_bad_arguments_leave_torch_as_it_was() -> None:
    threads = torch.get_num_threads()
    with pytest.raises(ValueError, match="threads is 0"):
        machine.read_bandwidth(1 << 10, 0)
    with pytest.raises(ZeroDivisionError), machine.torch_threads(1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == threads
