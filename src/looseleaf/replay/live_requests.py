"""Requests between arrival and end: what the scheduler's sequences do not know of themselves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.interface import KVMemory
from looseleaf.memory.prefix import Prefix
from looseleaf.replay.request_log import FinishedRequest, RequestLog
from looseleaf.scheduler import Request, Scheduler, Sequence, SequenceState, StepPlan
from looseleaf.scheduler.runs import DecodeRun

if TYPE_CHECKING:
    from looseleaf.replay.trace import TraceRequest


class LiveRequests:
    """Times of requests, gaps between tokens, and what enters the prefix cache.

    A trace does not say what was generated: all outputs are taken to differ, so each sample has a token of its own for
    all its output, a negative one, which no prompt contains.
    """

    def __init__(self, memory: KVMemory, log: RequestLog, *, shares: bool, takes_turns: bool) -> None:
        """`takes_turns`: a step may leave out sequences that decode."""
        self._takes_turns = takes_turns
        self._memory = memory
        self._log = log
        self._itl = log.histograms["itl"]
        self._shares = shares
        self._live: dict[Request, FinishedRequest] = {}
        self._num_left: dict[Request, int] = {}
        """Samples that have not ended, of requests with several."""
        self._tokens: dict[Sequence, NDArray[np.int32]] = {}
        """All that a sequence will ever consist of; of those that may share."""
        self._num_outputs = 0
        self._last_token: dict[Sequence, float] = {}
        """When those that were preempted, or whose turn has not come, got their last token."""

    def add(self, given: TraceRequest, scheduler: Scheduler, *, number: int, scope: str) -> None:
        """Queue a request; raises what `Scheduler.add` does."""
        prefix = None
        if self._shares and (tokens := given.token_ids()) is not None:
            prefix = Prefix(tokens, scope)
        request = Request(
            str(number),
            prompt_len=given.prompt_tokens,
            max_tokens=given.output_tokens,
            num_samples=given.num_samples,
            arrival=given.arrival,
            priority=given.priority,
            tenant=given.tenant,
            prefix=prefix,
        )
        scheduler.add(request)
        self._live[request] = FinishedRequest(
            given.arrival,
            -1.0,
            -1.0,
            -1.0,
            given.prompt_tokens,
            given.output_tokens,
            given.num_samples,
            0,
            0,
            given.tenant,
        )
        if given.num_samples > 1:
            self._num_left[request] = given.num_samples
        if prefix is not None:
            for sequence in request.sequences:
                self._num_outputs += 1
                own = np.full(given.output_tokens, -self._num_outputs, np.int32)
                self._tokens[sequence] = np.concatenate([prefix.tokens, own])

    def admitted(self, sequences: Iterable[Sequence], now: float) -> None:
        for sequence in sequences:
            live = self._live[sequence.request]
            if live.admitted < 0:
                live.admitted = now
                live.num_cached = sequence.request.num_cached_prompt_tokens or 0

    def preempted(self, sequences: Iterable[Sequence], now: float) -> None:
        """They are in the queue again, and look for all they knew when they return."""
        for sequence in sequences:
            request = sequence.request
            if sequence.num_tokens > request.prompt_len:
                self._last_token.setdefault(sequence, now)
            if request.prefix is not None and sequence.state is SequenceState.WAITING:
                sequence.prefix = Prefix(self._tokens[sequence][: sequence.prefill_len], request.prefix.scope)

    def sampled(self, plan: StepPlan, start: float, now: float) -> int:
        """A step has ended; nothing is committed yet. Returns what `gaps` does of its decodes."""
        late = self.gaps(plan.sequences[: plan.num_decodes], start, now, now) if self._takes_turns else 0
        if plan.num_decodes == len(plan.sequences):
            return late
        for at in np.flatnonzero(plan.num_samples[plan.num_decodes :]).tolist():
            sequence = plan.sequences[plan.num_decodes + at]
            live = self._live[sequence.request]
            if live.first_token < 0:
                live.first_token = now
            elif (last := self._last_token.pop(sequence, None)) is not None:
                self._itl.add(now - last)
            if self._takes_turns:
                self._last_token.update((each, now) for each in (sequence, *sequence.request.pending_forks))
        return late

    def gaps(self, sequences: Iterable[Sequence], start: float, first_end: float, last_end: float) -> int:
        """They have decoded in all steps from `start` to `last_end`, of which the first ended at `first_end`. Returns
        how many of them were not in the step before, so that more time than the first step lies behind its token."""
        if not self._takes_turns:
            return 0
        late = 0
        for sequence in sequences:
            if (last := self._last_token[sequence]) < start:
                self._itl.add(first_end - last)
                late += 1
            self._last_token[sequence] = last_end
        return late

    def ending(self, sequences: Iterable[Sequence], num_ahead: int = 0) -> None:
        """Before the commit that ends them: others may find what they have computed, this step included. `num_ahead`:
        steps before it that are committed with it."""
        if not self._shares:
            return
        for sequence in sequences:
            if sequence in self._tokens and sequence.seq_id >= 0:  # not one that ends before it forks
                forks = bool(sequence.request.pending_forks)  # they will write into its begun block
                num_tokens = sequence.num_tokens + num_ahead
                self._memory.register(sequence.seq_id, self._tokens[sequence], num_tokens, ended=not forks)

    def decoded(self, plan: StepPlan) -> None:
        """After the commit: others may find the blocks that became full."""
        if not self._tokens:
            return
        count, size = plan.num_decodes, self._memory.block_size
        for at in np.flatnonzero((plan.num_computed[:count] + 1) % size == 0).tolist():
            sequence = plan.sequences[at]
            if sequence.seq_id >= 0 and sequence in self._tokens:
                self._memory.register(sequence.seq_id, self._tokens[sequence], sequence.num_tokens - 1)

    def decoded_run(self, run: DecodeRun) -> None:
        if not self._tokens:
            return
        size, computed = self._memory.block_size, run.num_tokens - 1
        for at in np.flatnonzero((computed + run.num_steps) // size > computed // size).tolist():
            sequence = run.sequences[at]
            if sequence.seq_id >= 0 and sequence in self._tokens:
                self._memory.register(sequence.seq_id, self._tokens[sequence], sequence.num_tokens - 1)

    def ended(self, sequences: Iterable[Sequence], now: float) -> None:
        """After the commit that ended them."""
        for sequence in sequences:
            request = sequence.request
            if self._tokens:
                self._tokens.pop(sequence, None)
            if self._last_token:
                self._last_token.pop(sequence, None)
            if request.num_samples > 1:
                self._num_left[request] -= 1
                if self._num_left[request]:
                    continue
                del self._num_left[request]
            live = self._live.pop(request)
            live.finished = now
            live.num_preemptions = sum(each.num_preemptions for each in request.sequences)
            self._log.add(live)
            request.sequences.clear()  # they name the request: without this only the garbage collector could free both
