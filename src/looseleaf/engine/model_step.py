"""The tensors of one step: the batch, the model, the logits of the rows that are sampled, what is drawn from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from looseleaf.engine.batch import ModelBatch, build_batch
from looseleaf.engine.beam_search import BeamSearch
from looseleaf.engine.footprint import PROMPT_LOGPROB_ROWS
from looseleaf.engine.logprobs import prompt_logprobs
from looseleaf.engine.running_beams import advance
from looseleaf.engine.running_request import RunningRequest, RunningSample
from looseleaf.engine.sampler import SamplerOutput, sample
from looseleaf.engine.sampling_rows import SamplingRows
from looseleaf.engine.seats import Seats
from looseleaf.kernels.interface import Cascade, KVCache
from looseleaf.memory.interface import KVMemory
from looseleaf.models.interface import Decoder
from looseleaf.scheduler.interface import Sequence, StepPlan


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step drew."""

    entries: list[RunningSample] = field(default_factory=list)
    """Samples that get a token; beams are not among them."""
    sampled: SamplerOutput = field(default_factory=lambda: SamplerOutput(np.empty(0, np.int64), {}, {}))
    """Entry by entry."""
    parents: dict[RunningRequest, list[int]] = field(default_factory=dict)
    """For each request whose beams sampled, the beam that each of the next ones continues; nothing at its end."""


class ModelStep:
    """Runs plans: no policy, no memory decisions."""

    def __init__(
        self,
        model: Decoder,
        kv_cache: KVCache,
        memory: KVMemory,
        seats: Seats,
        sampling: SamplingRows,
        samples: Mapping[Sequence, RunningSample],
        cascade: Cascade,
    ) -> None:
        """`samples`: the engine's, by sequence; it grows and shrinks. `cascade`: `EngineConfig.cascade_attention`."""
        self._cascade = cascade
        self._model = model
        self._kv_cache = kv_cache
        self._memory = memory
        self._seats = seats
        self._sampling = sampling
        self._samples = samples

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Compute what `plan` schedules and draw the tokens that are due."""
        batch = build_batch(plan, self._seats, self._memory, self._cascade)
        sampling = np.flatnonzero(plan.num_samples)
        sampled_rows = batch.query_starts[1:][sampling].astype(np.int64) - 1
        prompt_rows = self._prompt_logprob_rows(plan, batch)
        wanted = (
            np.union1d(sampled_rows, np.concatenate([r.rows for r in prompt_rows])) if prompt_rows else sampled_rows
        )
        hidden = self._model.forward(
            batch.token_ids,
            batch.positions,
            self._kv_cache,
            batch.attention,
            torch.from_numpy(wanted) if len(wanted) < len(batch.token_ids) else None,
            batch.adapters,
        )
        for each in prompt_rows:
            self._record_prompt_logprobs(each, hidden, int(np.searchsorted(wanted, each.rows[0])))

        entries: list[RunningSample] = []
        searches: dict[RunningRequest, tuple[BeamSearch, list[int]]] = {}
        for row, sequence in enumerate(plan.sequences[i] for i in sampling.tolist()):
            entry = self._samples[sequence]
            if (search := entry.request.search) is not None:
                searches.setdefault(entry.request, (search, []))[1].append(row)
            else:
                entries.append(entry)
                entries += (self._samples[fork] for fork in sequence.request.pending_forks)
        if not len(sampling):
            return StepResult()
        if len(sampling) < len(wanted):
            hidden = hidden[torch.from_numpy(np.searchsorted(wanted, sampled_rows))]
        logits = self._model.logits(hidden)
        parents = {
            running: advance(running, search, logits, np.array(rows, np.int64))
            for running, (search, rows) in searches.items()
        }
        if not entries:
            return StepResult(parents=parents)

        counts = plan.num_samples[sampling]
        counts[[row for _, rows in searches.values() for row in rows]] = 0
        seats = np.array([entry.seat for entry in entries], np.int64)
        sampled = sample(logits, self._sampling.select(seats, np.repeat(np.arange(len(sampling)), counts)))
        return StepResult(entries, sampled, parents)

    def _prompt_logprob_rows(self, plan: StepPlan, batch: ModelBatch) -> list[_PromptRows]:
        """What the prompts in `plan` that want logprobs need of the hidden states."""
        needed = []
        for index in range(plan.num_decodes, len(plan.sequences)):
            running = self._samples[plan.sequences[index]].request
            if running.params.prompt_logprobs is None:
                continue
            # Row for position p predicts p + 1; after a preemption the first ones are known already.
            computed = int(plan.num_computed[index])
            first = max(computed, len(running.prompt_logprobs) - 1)
            last = min(computed + int(plan.num_scheduled[index]), len(running.prompt.token_ids) - 1)
            if first < last:
                offset = int(batch.query_starts[index]) - computed
                needed.append(_PromptRows(running, first, np.arange(offset + first, offset + last)))
        return needed

    def _record_prompt_logprobs(self, needed: _PromptRows, hidden: Tensor, start: int) -> None:
        """`start`: where in `hidden` its rows begin."""
        running = needed.request
        for begin in range(0, len(needed.rows), PROMPT_LOGPROB_ROWS):
            end = min(begin + PROMPT_LOGPROB_ROWS, len(needed.rows))
            logits = self._model.logits(hidden[start + begin : start + end])
            first = needed.position + 1
            targets = np.array(running.prompt.token_ids[first + begin : first + end])
            found = prompt_logprobs(logits, targets, running.params.prompt_logprobs or 0)
            running.prompt_logprobs += (each.as_dict(running.decode_token) for each in found)


@dataclass(frozen=True, slots=True)
class _PromptRows:
    """Rows of a step whose hidden states predict tokens of a prompt, one after another."""

    request: RunningRequest
    position: int
    """That of the first row."""
    rows: NDArray[np.int64]
