"""The sampling parameters of all running sequences, as arrays that a step gathers from."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from looseleaf.engine.grammar_state import GrammarState
from looseleaf.engine.logit_edits import LogitEdits
from looseleaf.engine.philox import uniform
from looseleaf.engine.sampling_params import SamplingParams

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """The rows to sample in one step: arrays with one entry per token to sample."""

    logits_index: Indices
    """Row of the logits that each entry samples from; several entries may share one."""
    random: NDArray[np.bool_]
    """False: greedy."""
    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    """0: off."""
    top_p: NDArray[np.float64]
    log_min_p: NDArray[np.float32]
    """log(min_p); minus infinity where it is off."""
    num_logprobs: NDArray[np.int32]
    """-1: no logprob wanted; otherwise the sampled token's and those of this many of the most likely."""
    uniform: NDArray[np.float64]
    """The random number of each entry, in [0, 1); 0 for greedy entries."""
    num_output: NDArray[np.int64]
    edits: dict[int, LogitEdits]
    """By entry, where the logits are changed before anything else."""

    def __len__(self) -> int:
        return len(self.logits_index)


class SamplingRows:
    """Struct of arrays, one row per running sequence (one sample of a request); the caller chooses the rows.

    `add` on admission, `append` after each step, `remove` at the end; `select` gathers a step's batch with a few
    vectorised calls. After a preemption `add` is given the output so far, and the sequence goes on as if nothing
    had happened.
    """

    def __init__(self, capacity: int, eos_token_ids: Collection[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self._random = np.zeros(capacity, np.bool_)
        self._temperature = np.ones(capacity, np.float32)
        self._top_k = np.zeros(capacity, np.int32)
        self._top_p = np.ones(capacity, np.float64)
        self._log_min_p = np.full(capacity, -np.inf, np.float32)
        self._num_logprobs = np.full(capacity, -1, np.int32)
        self._seed = np.zeros(capacity, np.uint64)
        self._sample = np.zeros(capacity, np.uint64)
        self._num_output = np.zeros(capacity, np.int64)
        self._min_tokens = np.zeros(capacity, np.int64)
        self._always_edited = np.zeros(capacity, np.bool_)
        self._counted = np.zeros(capacity, np.bool_)
        self._edits: dict[int, LogitEdits] = {}

    def add(
        self,
        row: int,
        params: SamplingParams,
        *,
        seed: int,
        sample: int = 0,
        prompt: Iterable[int],
        output: Collection[int] = (),
        grammar: GrammarState | None = None,
    ) -> None:
        """Fill `row`. `seed`: the request's, the same for all its samples. `grammar`: what the output follows; others
        keep it in step with the output."""
        self._random[row] = not params.greedy
        self._temperature[row] = params.temperature
        self._top_k[row] = max(params.top_k, 0)
        self._top_p[row] = params.top_p
        self._log_min_p[row] = math.log(params.min_p) if params.min_p else -np.inf
        self._num_logprobs[row] = (params.logprobs or 0) if params.needs_logprobs else -1
        self._seed[row] = seed % 2**64
        self._sample[row] = sample
        self._num_output[row] = len(output)
        self._min_tokens[row] = params.min_tokens
        self._counted[row] = params.penalised
        self._always_edited[row] = params.penalised or params.logit_bias is not None or grammar is not None
        self._edits.pop(row, None)
        if self._always_edited[row] or params.min_tokens:
            end_token_ids = {*params.stop_token_ids, *(() if params.ignore_eos else self._eos_token_ids)}
            self._edits[row] = LogitEdits(params, sorted(end_token_ids), prompt, output, grammar)

    def remove(self, row: int) -> None:
        """Forget `row`; nothing selects it until it is added again."""
        self._edits.pop(row, None)

    def append(self, rows: Indices, token_ids: Indices) -> None:
        """Record the tokens sampled for `rows` (each row once)."""
        self._num_output[rows] += 1
        for entry in np.flatnonzero(self._counted[rows]).tolist():
            counts = self._edits[int(rows[entry])].counts
            if counts is not None:
                counts.append(int(token_ids[entry]))

    def select(self, rows: Indices, logits_index: Indices | None = None) -> SamplingBatch:
        """The batch that samples one token for each of `rows`; `logits_index` defaults to 0, 1, 2, …"""
        random = self._random[rows]
        num_output = self._num_output[rows]
        numbers = np.zeros(len(rows), np.float64)
        if random.any():
            drawn = rows[random]
            numbers[random] = uniform(self._seed[drawn], self._sample[drawn], num_output[random].astype(np.uint64))
        edited = self._always_edited[rows] | (num_output < self._min_tokens[rows])
        return SamplingBatch(
            logits_index=np.arange(len(rows)) if logits_index is None else logits_index,
            random=random,
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            log_min_p=self._log_min_p[rows],
            num_logprobs=self._num_logprobs[rows],
            uniform=numbers,
            num_output=num_output,
            edits={entry: self._edits[int(rows[entry])] for entry in np.flatnonzero(edited).tolist()},
        )
