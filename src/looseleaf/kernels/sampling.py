"""Over the vocabulary of each row of logits, without copying them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from looseleaf.kernels import native


def most_likely(logits: Tensor, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of `rows`, where that row of `logits` (float32 `[rows, vocab]`) is largest.

    The first of equals; the first NaN of a row that has any. On torch's threads with the extension.
    """
    if native.is_chosen() and logits.is_contiguous() and logits.dtype == torch.float32:
        best = np.empty(len(rows), np.int64)
        torch.ops.looseleaf.argmax_rows(logits, torch.from_numpy(rows), torch.from_numpy(best))
        return best
    values = logits.numpy()
    return np.array([values[row].argmax() for row in rows.tolist()], np.int64)
