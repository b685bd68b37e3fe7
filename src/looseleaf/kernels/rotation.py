"""The rotation under which int8 caches hold keys; see csrc/attention/rotation.inc."""

from __future__ import annotations

import torch
from torch import Tensor


def rotated_together(head_dim: int) -> int:
    """Dimensions that are mixed with one another: the largest power of two that divides `head_dim`."""
    return head_dim & -head_dim


def rotate(rows: Tensor) -> Tensor:
    """`rows` (`[…, head_dim]`) times a Hadamard matrix of +1 and −1, as float32.

    The product of two rotated rows is `rotated_together(head_dim)` times that of the rows. The additions are those of
    the native kernels, in their order.
    """
    rows = rows.float()
    reach = 1
    while reach < rotated_together(rows.shape[-1]):
        pairs = rows.reshape(*rows.shape[:-1], -1, 2, reach)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        rows = torch.stack((a + b, a - b), dim=-2).flatten(-3)
        reach *= 2
    return rows
