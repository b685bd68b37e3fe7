"""Random numbers that are a pure function of what they are for.

A counter-based generator has no state to carry or lose: the number for (seed, sample, position) is the same
in any batch, in any order, and after a preemption.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

UInt64s = NDArray[np.uint64]

_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_MULTIPLIER_0, _MULTIPLIER_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10


def philox_4x32(
    counter: tuple[UInt64s, UInt64s, UInt64s, UInt64s], key: tuple[UInt64s, UInt64s]
) -> tuple[UInt64s, UInt64s, UInt64s, UInt64s]:
    """Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), one block per row.

    All words are 32-bit values held in uint64 arrays of one shape, so that products keep their high half.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product_0, product_1 = c0 * _MULTIPLIER_0, c2 * _MULTIPLIER_1
        c0 = (product_1 >> _32) ^ c1 ^ k0
        c1 = product_1 & _LOW
        c2 = (product_0 >> _32) ^ c3 ^ k1
        c3 = product_0 & _LOW
        k0, k1 = (k0 + _WEYL_0) & _LOW, (k1 + _WEYL_1) & _LOW
    return c0, c1, c2, c3


def uniform(seed: UInt64s, sample: UInt64s, position: UInt64s) -> NDArray[np.float64]:
    """One float64 in [0, 1), with 53 random bits, for each (seed, sample, position).

    `seed` (any uint64) is the key; `sample` and `position` (below 2**32 and 2**64) are the counter.
    """
    zero = np.zeros_like(position)
    words = philox_4x32((position & _LOW, position >> _32, sample & _LOW, zero), (seed & _LOW, seed >> _32))
    high, low = words[0] >> np.uint64(5), words[1] >> np.uint64(6)
    mantissa = (high << np.uint64(26)) | low
    return mantissa.astype(np.float64) * 2.0**-53


def derived_seed(seed: int, index: int) -> int:
    """The seed of the `index`-th request under an engine's `seed`, for requests that name none."""
    words = [np.array([word], np.uint64) for word in (index & 0xFFFFFFFF, index >> 32, 0, 1)]
    key = (np.array([seed & 0xFFFFFFFF], np.uint64), np.array([(seed >> 32) & 0xFFFFFFFF], np.uint64))
    low, high, _, _ = philox_4x32((words[0], words[1], words[2], words[3]), key)
    return int(low[0]) | int(high[0]) << 32
