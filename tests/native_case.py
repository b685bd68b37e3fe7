"""What tests of native code loop over: instruction sets, forms of the KV cache, threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

ISAS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")
DTYPES = (torch.float32, torch.bfloat16, torch.int8)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16", "int8"])


def every_isa(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test on each instruction set, by the fixture `isa`; those that the machine lacks are skipped."""
    return pytest.mark.usefixtures("isa")(pytest.mark.parametrize("isa", ISAS, indirect=True)(test))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with so many of torch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
