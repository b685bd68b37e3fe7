"""The most likely tokens of one row, in an order that depends on nothing but the row.

Equal logits are common (bfloat16 has few values) and selection algorithms return them in any order; here the
lower token id always comes first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
TokenIds = NDArray[np.int64]

_BLOCK = 256
"""Values whose maximum stands for them while looking for the largest of a row: fits a few vector registers."""


def kth_largest(row: Floats, k: int) -> np.float32:
    """The k-th largest of `row` (1 <= k <= len(row)), without sorting it."""
    position = len(row) - k
    return np.float32(np.partition(row, position)[position])


def at_least_kth_largest(row: Floats, k: int) -> TokenIds:
    """Ids of the k largest of `row` and of any equal to the k-th, in order of id."""
    num_blocks = len(row) // _BLOCK
    if k > num_blocks:
        return np.flatnonzero(row >= kth_largest(row, k))
    # k blocks have a maximum of at least the k-th largest maximum, so k values do: the k-th largest is not below
    # it, and only the few values that are not below it either need selecting from.
    maxima = row[: num_blocks * _BLOCK].reshape(num_blocks, _BLOCK).max(1)
    ids = np.flatnonzero(row >= kth_largest(maxima, k))
    values = row[ids]
    return ids[values >= kth_largest(values, k)]


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
    candidates = at_least_kth_largest(row, k)
    return candidates[np.argsort(-row[candidates], kind="stable")][:k]
