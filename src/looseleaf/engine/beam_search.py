"""Beam search over one request: which continuations go on, which hypotheses are kept, and when it is over.

The rules are those of `generate(num_beams=…)` in transformers: the best beams * max(2, 1 + ends) continuations of all
beams together are looked at, best first; among the first `beam_width` those that end are hypotheses, and the best
`beam_width` that do not end are the next beams. A hypothesis is scored by its log-probability divided by its
length (in tokens, its end included) to the power of `length_penalty`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from looseleaf.engine.logit_edits import LogitEdits
from looseleaf.engine.logprobs import TokenLogprobs
from looseleaf.engine.row_copies import copy_rows, row_slices
from looseleaf.engine.row_order import largest
from looseleaf.engine.sampling_errors import SamplingFailed
from looseleaf.engine.sampling_params import SamplingParams

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Output tokens, and how likely they are."""

    token_ids: tuple[int, ...] = ()
    total: float = 0.0
    """Sum of the tokens' log-probabilities after bias and penalties: what beams are ranked by."""
    cumulative_logprob: float = 0.0
    """The same under the model's own distribution."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """By token, where they were asked for."""

    def score(self, length_penalty: float) -> float:
        """Beams of different lengths are compared by this; higher is better."""
        return self.total / math.pow(len(self.token_ids), length_penalty)


@dataclass(frozen=True, slots=True)
class Continuations:
    """The most likely next tokens of each beam, most likely first; `[beams, count]`, equal ones by id."""

    token_ids: NDArray[np.int64]
    scores: Scores
    """Log-probabilities after bias and penalties (which leave them as they are, not adding up to one)."""
    logprobs: Scores
    """Log-probabilities under the model's own distribution."""


def continuations(
    logits: Tensor, rows: NDArray[np.int64], count: int, edits: Sequence[LogitEdits] = (), num_output: int = 0
) -> Continuations:
    """The `count` most likely next tokens for each of `rows` of `logits` (float32 `[rows, vocab]`, not changed).

    `edits`: one per row, or none at all, for outputs of `num_output` tokens so far. Bias and penalties apply to
    log-probabilities, as in transformers.
    Raises `SamplingFailed` for logits that are no numbers.
    """
    vocab_size = logits.shape[-1]
    shape = len(rows), count
    found = Continuations(np.empty(shape, np.int64), np.empty(shape), np.empty(shape))
    for part in row_slices(len(rows), vocab_size):
        own = copy_rows(logits, rows[part])
        peaks = own.max(-1)
        if not np.isfinite(peaks).all():
            raise SamplingFailed(
                f"The model's logits for this token contain {peaks[~np.isfinite(peaks)][0]}.",
                hint="Check the weights and the dtype; float32 is the safest.",
            )
        logprobs = torch.log_softmax(torch.from_numpy(own), -1).numpy()
        for i, beam in enumerate(range(len(rows))[part]):
            ranked = own[i]  # rounding can make the log-probabilities of different logits equal
            scores = logprobs[i]
            if edits:
                ranked = scores = scores.copy()
                edits[beam].apply(scores, num_output)
            best = largest(ranked, count)
            found.token_ids[beam], found.scores[beam], found.logprobs[beam] = best, scores[best], logprobs[i][best]
    return found


class BeamSearch:
    """The state of one search. `advance` takes the continuations of the beams and says which beam each next one
    comes from."""

    def __init__(self, width: int, params: SamplingParams, end_token_ids: Collection[int], max_tokens: int) -> None:
        """`params` say how hypotheses compare. `max_tokens`: the request's, already bounded by what fits."""
        self.width = width
        self.num_candidates = candidates_of(self.width, len(end_token_ids))
        self.end_token_ids = frozenset(end_token_ids)
        self.beams = [Hypothesis()]
        """Those that go on, best first: one before the first token, `width` after it."""
        self.hypotheses: list[Hypothesis] = []
        """The best that have ended, at most `width`, best first."""
        self.done = False
        self._length_penalty = params.length_penalty
        # A single beam has nothing to be compared with: it is the greedy search, over at its first end.
        self._early_stopping = True if self.width == 1 else params.early_stopping
        self._max_tokens = max_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens that each beam has."""
        return len(self.beams[0].token_ids)

    def advance(
        self,
        found: Continuations,
        describe: Callable[[NDArray[np.int64], NDArray[np.int64]], Sequence[TokenLogprobs]] | None = None,
    ) -> list[int]:
        """Go one token further; the beam that each of the new beams continues. Empty, and `done` set, at the end.

        `describe`: gives the reported logprobs of tokens (beams, token ids), for those that are kept.
        """
        totals = np.array([beam.total for beam in self.beams])[:, None] + found.scores
        order = np.argsort(-totals, axis=None, kind="stable")[: self.num_candidates]
        length = self.num_tokens + 1
        going_on: list[int] = []
        ending: list[int] = []
        for rank, place in enumerate(order.tolist()):
            if length == self._max_tokens or int(found.token_ids.flat[place]) in self.end_token_ids:
                if rank < self.width:
                    ending.append(place)
            elif len(going_on) < self.width:
                going_on.append(place)
        kept = np.array(going_on + ending, np.int64)
        parents = kept // found.token_ids.shape[1]
        token_ids = found.token_ids.ravel()[kept]
        described = describe(parents, token_ids) if describe else []
        extended = [
            Hypothesis(
                (*self.beams[parent].token_ids, token_id),
                total,
                self.beams[parent].cumulative_logprob + logprob,
                (*self.beams[parent].logprobs, *described[i : i + 1]),
            )
            for i, (parent, token_id, total, logprob) in enumerate(
                zip(
                    parents.tolist(),
                    token_ids.tolist(),
                    totals.ravel()[kept].tolist(),
                    found.logprobs.ravel()[kept].tolist(),
                    strict=True,
                )
            )
        ]
        self.hypotheses = self._best(self.hypotheses + extended[len(going_on) :])[: self.width]
        self.done = not going_on or self._is_decided(extended[0])
        if self.done:
            return []
        self.beams = extended[: len(going_on)]
        return [int(parent) for parent in parents[: len(going_on)]]

    def best(self, count: int) -> list[Hypothesis]:
        """The best `count`; of a search that is not over, beams still on their way make up the number."""
        beams = [] if self.done else self._best([beam for beam in self.beams if beam.token_ids])
        return (self.hypotheses + beams)[:count]

    def score(self, hypothesis: Hypothesis) -> float:
        return hypothesis.score(self._length_penalty)

    def _best(self, hypotheses: list[Hypothesis]) -> list[Hypothesis]:
        return sorted(hypotheses, key=self.score, reverse=True)  # stable: the earlier of equals stays first

    def _is_decided(self, best_beam: Hypothesis) -> bool:
        """Whether the hypotheses are as many as asked for and no beam is expected to do better."""
        if len(self.hypotheses) < self.width:
            return False
        if self._early_stopping is True:
            return True
        length = len(best_beam.token_ids)
        if self._early_stopping == "never" and self._length_penalty > 0:
            length = self._max_tokens
        best_possible = best_beam.total / math.pow(length, self._length_penalty)
        return best_possible <= self.score(self.hypotheses[-1])


def candidates_of(beam_width: int, num_end_token_ids: int) -> int:
    """Continuations that a step looks at: so many that `beam_width` of them do not end."""
    return max(2, 1 + num_end_token_ids) * beam_width
