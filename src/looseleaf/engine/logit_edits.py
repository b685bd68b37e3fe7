"""What one request changes in its row of logits before a token is chosen."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from looseleaf.engine.grammar_state import GrammarState
from looseleaf.engine.sampling_params import SamplingParams


class TokenCounts:
    """The distinct tokens of a prompt and its output, and how often each is in the output.

    Held as two parallel arrays that grow by doubling, so a step costs the distinct tokens and not the vocabulary.
    """

    def __init__(self, prompt: Iterable[int], output: Iterable[int] = ()) -> None:
        distinct = np.unique(np.fromiter(prompt, np.int64))
        self._size = len(distinct)
        self._ids = distinct
        self._in_output = np.zeros(self._size, np.int32)
        self._slot = {token_id: slot for slot, token_id in enumerate(distinct.tolist())}
        for token_id in output:
            self.append(token_id)

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._ids[: self._size]

    @property
    def in_output(self) -> NDArray[np.int32]:
        return self._in_output[: self._size]

    def append(self, token_id: int) -> None:
        """Count one more output token."""
        slot = self._slot.setdefault(token_id, self._size)
        if slot == self._size:
            if self._size == len(self._ids):
                capacity = max(64, 2 * self._size)
                self._ids = np.resize(self._ids, capacity)
                self._in_output = np.resize(self._in_output, capacity)
            self._ids[slot] = token_id
            self._in_output[slot] = 0
            self._size += 1
        self._in_output[slot] += 1


def penalise(logits: NDArray[np.float32], counts: TokenCounts, params: SamplingParams) -> None:
    """Apply the three penalties in place to one row.

    Repetition counts prompt and output and comes first; presence and frequency count the output only.
    """
    ids, in_output = counts.ids, counts.in_output
    values = logits[ids]
    if params.repetition_penalty != 1:
        penalty = np.float32(params.repetition_penalty)
        values = np.where(values > 0, values / penalty, values * penalty)
    values -= np.float32(params.frequency_penalty) * in_output.astype(np.float32)
    values -= np.float32(params.presence_penalty) * (in_output > 0)
    logits[ids] = values


class LogitEdits:
    """Bias, forbidden ends, penalties and grammar of one running sequence."""

    def __init__(
        self,
        params: SamplingParams,
        end_token_ids: Iterable[int],
        prompt: Iterable[int],
        output: Iterable[int],
        grammar: GrammarState | None = None,
    ) -> None:
        """`grammar`: whoever owns it keeps it in step with the output."""
        bias = params.logit_bias or {}
        self._params = params
        self._bias_ids = np.fromiter(bias.keys(), np.int64)
        self._bias = np.fromiter(bias.values(), np.float32)
        self._end_ids = np.fromiter(end_token_ids, np.int64)
        self._grammar = grammar
        self.counts = TokenCounts(prompt, output) if params.penalised else None

    def apply(self, logits: NDArray[np.float32], num_output: int) -> None:
        """Edit one row (`[vocab]`) in place; `num_output` tokens have been sampled before this one."""
        if self._bias_ids.size:
            logits[self._bias_ids] += self._bias
        if num_output < self._params.min_tokens:
            logits[self._end_ids] = -np.inf
        if self.counts is not None:
            penalise(logits, self.counts, self._params)
        if self._grammar is not None:
            self._grammar.restrict(logits, self._end_ids)
