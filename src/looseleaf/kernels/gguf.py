"""Values of quantised GGUF blocks, decoded by the extension where there is one."""

from __future__ import annotations

import torch
from torch import Tensor

from looseleaf.kernels import native

NATIVE_ENCODINGS = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")


def can_decode(encoding: str) -> bool:
    return encoding in NATIVE_ENCODINGS and native.is_available()


def decode(encoded: Tensor, encoding: str, out: Tensor) -> None:
    """Decode `encoded` (uint8 `[rows, bytes of a row]`) into `out` (`[rows, values of a row]`), both contiguous.

    Bitwise what `gguf.quants.dequantize` gives, in `out`'s dtype (float32, or rounded to bfloat16). Only for
    encodings that `can_decode`. Raises ValueError where shapes, strides or dtypes do not fit.
    """
    try:
        torch.ops.looseleaf.decode_gguf(encoded, encoding, out)
    except RuntimeError as error:
        raise ValueError(str(error).partition("\n")[0]) from None
