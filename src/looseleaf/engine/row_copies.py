"""Copies of rows of logits, a bounded number at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from looseleaf.engine.row_order import Floats, TokenIds

SLICE_ELEMENTS = 1 << 20
"""Logits worked on at once: few enough to stay in cache and bound peak memory, enough for every thread."""


def row_slices(num_rows: int, vocab_size: int) -> Iterator[slice]:
    """Cut rows into runs of about SLICE_ELEMENTS logits, each at least a row for every thread."""
    rows = max(SLICE_ELEMENTS // vocab_size, torch.get_num_threads(), 1)
    for start in range(0, num_rows, rows):
        yield slice(start, min(start + rows, num_rows))


def copy_rows(logits: Tensor, index: TokenIds) -> Floats:
    """Rows `index` of `logits`, in memory of their own."""
    rows: Floats = logits.numpy()[index]
    return rows
