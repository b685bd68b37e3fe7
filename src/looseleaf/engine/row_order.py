"""The most likely tokens of one row, in an order that depends on nothing but the row.

Equal logits are common (bfloat16 has few values) and selection algorithms return them in any order; here the
lower token id always comes first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
TokenIds = NDArray[np.int64]


def kth_largest(row: Floats, k: int) -> np.float32:
    """The k-th largest of `row` (1 <= k <= len(row)), without sorting it."""
    position = len(row) - k
    return np.float32(np.partition(row, position)[position])


def descending(values: Floats) -> NDArray[np.intp]:
    """Indices that sort non-negative float32 `values` downwards, equal ones by index upwards.

    The bits of non-negative floats order as integers do, so value and index fit one 64-bit key; sorting keys is
    several times faster than a stable argsort.
    """
    keys = values.view(np.int32).astype(np.int64) << 32
    keys |= np.arange(len(values) - 1, -1, -1)
    keys.sort()
    return (len(values) - 1 - (keys[::-1] & 0xFFFFFFFF)).astype(np.intp)


def largest(row: Floats, k: int) -> TokenIds:
    """Ids of the k largest of `row`, largest first, equal ones by id."""
    if k == 0:
        return np.empty(0, np.int64)
    candidates = np.flatnonzero(row >= kth_largest(row, k))
    return candidates[np.argsort(-row[candidates], kind="stable")][:k]
