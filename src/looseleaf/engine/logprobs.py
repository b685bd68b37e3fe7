"""Log-probabilities under the model's own distribution: raw logits, before penalties, temperature or filters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from looseleaf.engine.outputs import Logprob
from looseleaf.engine.row_copies import copy_rows, row_slices
from looseleaf.engine.row_order import TokenIds, largest


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One position: its token's logprob and rank, and the most likely tokens there, most likely first."""

    token_id: int
    logprob: float
    rank: int
    """1 + the number of strictly more likely tokens."""
    top_ids: NDArray[np.int64]
    top_logprobs: NDArray[np.float32]

    def as_dict(self, decode: Callable[[int], str] | None = None) -> dict[int, Logprob]:
        """In the shape of the outputs: this token first, then the most likely ones; `decode` gives their text."""
        entries = {self.token_id: Logprob(self.logprob, self.rank, decode(self.token_id) if decode else None)}
        for rank, (top_id, logprob) in enumerate(
            zip(self.top_ids.tolist(), self.top_logprobs.tolist(), strict=True), 1
        ):
            if top_id not in entries:
                entries[top_id] = Logprob(logprob, rank, decode(top_id) if decode else None)
        return entries


def token_logprobs(
    logits: Tensor, logits_index: TokenIds, token_ids: TokenIds, num_top: NDArray[np.int32]
) -> list[TokenLogprobs]:
    """Logprob of `token_ids[i]` in row `logits_index[i]` of `logits` (float32 `[rows, vocab]`), with the
    `num_top[i]` most likely tokens. Peak memory beyond the result is a few slices, whatever the number of rows.
    """
    results: list[TokenLogprobs] = []
    for part in row_slices(len(token_ids), logits.shape[-1]):
        # Ranked by logit: rounding can make the logprobs of different logits equal.
        rows = copy_rows(logits, logits_index[part])
        logprobs = torch.log_softmax(torch.from_numpy(rows), -1).numpy()
        for row, logprob, token_id, k in zip(rows, logprobs, token_ids[part], num_top[part], strict=True):
            top_ids = largest(row, min(int(k), len(row)))
            rank = 1 + int(np.count_nonzero(row > row[token_id]))
            results.append(TokenLogprobs(int(token_id), float(logprob[token_id]), rank, top_ids, logprob[top_ids]))
    return results


def prompt_logprobs(logits: Tensor, token_ids: TokenIds, num_top: int) -> list[TokenLogprobs]:
    """For a block of prompt rows (`[rows, vocab]`): row i predicts `token_ids[i]`, the token after its own."""
    return token_logprobs(logits, np.arange(len(token_ids)), token_ids, np.full(len(token_ids), num_top, np.int32))
