"""Drawing one token per row: temperature, min_p, top_k, top_p, then the inverse of the cumulative distribution.

Each row's result is a function of that row, its parameters and its random number alone: every sum runs within
the row, in an order that does not depend on how many rows there are. A token of probability zero is never drawn.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from looseleaf.engine.row_order import Floats, TokenIds, at_least_kth_largest, descending
from looseleaf.engine.sampling_rows import Indices, SamplingBatch


def invert(weights: NDArray[np.floating], number: float) -> int:
    """Index drawn by `number` in [0, 1) from non-negative `weights` (not all zero, any sum).

    It is the first whose cumulative weight exceeds `number` * total, so its own weight is positive.
    """
    cumulative = np.cumsum(weights, dtype=np.float64)
    return int(np.searchsorted(cumulative, number * cumulative[-1], side="right"))


def nucleus(weights: Floats, total: float, top_p: float) -> NDArray[np.intp]:
    """Indices of the nucleus of `weights`, most likely first: those before which less than top_p * total lies."""
    order = descending(weights)
    sorted_weights = weights[order].astype(np.float64)
    before = np.cumsum(sorted_weights) - sorted_weights
    return order[: max(1, int(np.count_nonzero(before < top_p * total)))]


def draw_narrow(row: Floats, entry: int, batch: SamplingBatch) -> int:
    """Draw from one row (`[vocab]`, finite maximum) where top_k or min_p is on: only what they keep is looked at."""
    peak, temperature, top_k = row.max(), batch.temperature[entry], int(batch.top_k[entry])
    floor = peak + temperature * batch.log_min_p[entry]
    if 0 < top_k < len(row):
        ids = at_least_kth_largest(row, top_k)
        ids = ids[row[ids] >= floor]
    else:
        ids = np.flatnonzero(row >= floor)
    weights = np.exp((row[ids] - peak) / temperature)
    if batch.top_p[entry] < 1:
        kept = nucleus(weights, float(weights.sum(dtype=np.float64)), batch.top_p[entry])
        ids, weights = ids[kept], weights[kept]
    return int(ids[invert(weights, batch.uniform[entry])])


def draw_wide(rows: Floats, entries: Indices, batch: SamplingBatch) -> TokenIds:
    """Draw from rows (`[r, vocab]`, finite maxima, overwritten) where top_k and min_p are off."""
    rows -= rows.max(-1, keepdims=True)  # before the division, which could take large logits to infinity
    rows /= batch.temperature[entries, None]
    probabilities = torch.softmax(torch.from_numpy(rows), -1)
    tokens = np.empty(len(entries), np.int64)
    top_p = batch.top_p[entries]
    for i in np.flatnonzero(top_p < 1).tolist():
        tokens[i] = _draw_top_p(probabilities[i].numpy(), top_p[i], batch.uniform[entries[i]])
    unfiltered = np.flatnonzero(top_p == 1)
    if unfiltered.size:
        if unfiltered.size < len(entries):
            probabilities = probabilities[torch.from_numpy(unfiltered)]
        cumulative = probabilities.cumsum(-1, dtype=torch.float64)
        numbers = torch.from_numpy(batch.uniform[entries[unfiltered]]).unsqueeze(1)
        drawn = torch.searchsorted(cumulative, numbers * cumulative[:, -1:], right=True)
        tokens[unfiltered] = drawn.squeeze(1).numpy()
    return tokens


def _draw_top_p(probabilities: Floats, top_p: float, number: float) -> int:
    # The tokens above any threshold are the first of the order, so if their sum reaches top_p they hold the
    # nucleus, and the vocabulary need not be sorted. Below the last threshold lies less than (1 - top_p) / 2.
    last = (1 - top_p) / (2 * len(probabilities))
    threshold = max((1 - top_p) / 64, last)
    while True:
        ids = np.flatnonzero(probabilities > threshold)
        candidates = probabilities[ids]
        if threshold == last or candidates.sum(dtype=np.float64) >= top_p:
            break
        threshold = max(threshold / 16, last)
    kept = nucleus(candidates, 1.0, top_p)
    return int(ids[kept[invert(candidates[kept], number)]])
