"""The rotation of int8 keys leaves products as they are, is its own inverse, and spreads what stands out."""

from __future__ import annotations

import pytest
import torch

from looseleaf.kernels.reference import quantise
from looseleaf.kernels.rotation import rotate, rotated_together

HEAD_DIMS = [8, 32, 40, 64, 72, 80, 96, 112, 128, 256]


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_products_and_rows_come_back(head_dim: int) -> None:
    a, b = torch.randn(2, 50, head_dim, generator=torch.Generator().manual_seed(head_dim))
    count = rotated_together(head_dim)
    assert head_dim % count == 0
    assert (head_dim // count) % 2 == 1
    torch.testing.assert_close((rotate(a) * rotate(b)).sum(-1) / count, (a * b).sum(-1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(rotate(rotate(a)) / count, a, atol=1e-5, rtol=1e-5)


def test_the_matrix_is_hadamards() -> None:
    matrix = rotate(torch.eye(4))
    assert matrix.tolist() == [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]


def test_a_dimension_that_stands_out_no_longer_sets_the_scale_for_all() -> None:
    rows = torch.randn(500, 64, generator=torch.Generator().manual_seed(0))
    rows[:, 5] += 20

    def error(quantised: torch.Tensor) -> float:
        return float((quantised - rows).square().mean().sqrt())

    numbers, scales = quantise(rows)
    plain = error(numbers.float() * scales.float())
    numbers, scales = quantise(rotate(rows))
    assert error(rotate(numbers.float() * scales.float()) / 64) < plain / 3
