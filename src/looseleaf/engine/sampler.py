"""From a step's logits to its tokens.

For each row, in this order: logit bias, forbidden ends (min_tokens), penalties, grammar; then greedy rows take the most
likely token (the lowest id of equals), and the others are drawn after temperature, min_p, top_k and top_p.
Reported logprobs are of the logits as the model gave them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from looseleaf.engine.draw import draw_narrow, draw_wide
from looseleaf.engine.logprobs import TokenLogprobs, token_logprobs
from looseleaf.engine.row_copies import copy_rows, row_slices
from looseleaf.engine.row_order import Floats, TokenIds
from looseleaf.engine.sampling_errors import SamplingFailed
from looseleaf.engine.sampling_rows import Indices, SamplingBatch
from looseleaf.kernels.sampling import most_likely

FAILED_TOKEN = -1
Pick = Callable[[Floats, Indices, SamplingBatch], TokenIds]


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """One entry per entry of the batch."""

    token_ids: NDArray[np.int64]
    """-1 where sampling failed."""
    failures: dict[int, SamplingFailed]
    """By entry; empty in a healthy step."""
    logprobs: dict[int, TokenLogprobs]
    """By entry, for those that asked and did not fail."""


@np.errstate(over="ignore")  # Models pad their vocabulary with the lowest float; halving the temperature overflows it.
def sample(logits: Tensor, batch: SamplingBatch) -> SamplerOutput:
    """Sample one token for each entry of `batch` from `logits` (float32 `[rows, vocab]`), which are not changed.

    A row without a usable maximum (a NaN or infinity from the model, or every token forbidden) fails alone.
    """
    failures: dict[int, SamplingFailed] = {}
    if batch.edits or batch.random.any():
        tokens = _sample_mixed(logits, batch, failures)
    else:
        tokens = _argmax(logits, batch.logits_index, np.arange(len(batch)), failures)
    if (batch.num_logprobs < 0).all():
        return SamplerOutput(tokens, failures, {})
    wanted = np.flatnonzero((batch.num_logprobs >= 0) & (tokens != FAILED_TOKEN))
    logprobs = token_logprobs(logits, batch.logits_index[wanted], tokens[wanted], batch.num_logprobs[wanted])
    return SamplerOutput(tokens, failures, dict(zip(wanted.tolist(), logprobs, strict=True)))


def _sample_mixed(logits: Tensor, batch: SamplingBatch, failures: dict[int, SamplingFailed]) -> TokenIds:
    """Tokens where some entries are drawn, or their logits edited."""
    vocab_size = logits.shape[-1]
    tokens = np.full(len(batch), FAILED_TOKEN, np.int64)
    edited = np.zeros(len(batch), np.bool_)
    edited[list(batch.edits)] = True
    narrow = batch.random & ((batch.top_k > 0) & (batch.top_k < vocab_size) | (batch.log_min_p > -np.inf))

    greedy = np.flatnonzero(~(batch.random | edited))
    if greedy.size:
        tokens[greedy] = _argmax(logits, batch.logits_index[greedy], greedy, failures)
    for entries, pick in (
        (np.flatnonzero(edited & ~batch.random), _pick_most_likely),
        (np.flatnonzero(narrow), _pick_narrow),
        (np.flatnonzero(batch.random & ~narrow), draw_wide),
    ):
        for part in row_slices(len(entries), vocab_size):
            tokens[entries[part]] = _sample_rows(logits, entries[part], batch, pick, failures)
    return tokens


def _argmax(logits: Tensor, index: Indices, entries: Indices, failures: dict[int, SamplingFailed]) -> TokenIds:
    """Greedy tokens straight from the logits, without copying a row."""
    rows: Floats = logits.numpy()
    best = most_likely(logits, index)
    return np.where(_usable(rows[index, best], entries, failures), best, FAILED_TOKEN)


def _sample_rows(
    logits: Tensor, entries: Indices, batch: SamplingBatch, pick: Pick, failures: dict[int, SamplingFailed]
) -> TokenIds:
    """Copy the rows of `entries`, edit the copy, and `pick` from it."""
    rows = copy_rows(logits, batch.logits_index[entries])
    for i, entry in enumerate(entries.tolist()):
        if (edits := batch.edits.get(entry)) is not None:
            edits.apply(rows[i], int(batch.num_output[entry]))
    usable = _usable(rows.max(-1), entries, failures)
    if not usable.all():
        rows[~usable] = 0
    return np.where(usable, pick(rows, entries, batch), FAILED_TOKEN)


def _usable(peak: Floats, entries: Indices, failures: dict[int, SamplingFailed]) -> NDArray[np.bool_]:
    """Which rows have a finite maximum (maxima pass a NaN on); the others are entered in `failures`."""
    usable = np.isfinite(peak)
    for entry in np.flatnonzero(~usable).tolist():
        if peak[entry] == -np.inf:
            failure = SamplingFailed(
                "Every token is forbidden here.", hint="Loosen min_tokens, the stop tokens or the grammar."
            )
        else:
            failure = SamplingFailed(
                f"The model's logits for this token contain {peak[entry]}.",
                hint="Check the weights and the dtype; float32 is the safest.",
            )
        failures[int(entries[entry])] = failure
    return usable


def _pick_most_likely(rows: Floats, _entries: Indices, _batch: SamplingBatch) -> TokenIds:
    best: TokenIds = rows.argmax(-1)
    return best


def _pick_narrow(rows: Floats, entries: Indices, batch: SamplingBatch) -> TokenIds:
    drawn = (draw_narrow(row, entry, batch) for row, entry in zip(rows, entries.tolist(), strict=True))
    return np.fromiter(drawn, np.int64, len(rows))
