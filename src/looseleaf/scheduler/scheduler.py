"""Who runs next: continuous batching with a token budget, chunked prefill and preemption by recompute.

Pure decisions: no tensors, no clock, no randomness; the same calls give the same plans. The order is the policy's.
The iteration-level batch is that of Orca (Yu et al., OSDI 2022), preemption of the latest by recompute that of
PagedAttention (Kwon et al., SOSP 2023), chunked prefill beside decodes that of Sarathi-Serve
(Agrawal et al., OSDI 2024).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Collection
from itertools import chain, islice
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from looseleaf.errors import ConfigurationError, InvalidRequest
from looseleaf.memory.errors import OutOfBlocks
from looseleaf.memory.interface import CopyPairs, KVMemory, SequenceIds
from looseleaf.scheduler.beams import BeamGroups, Parents, check_parents, sampled_beams
from looseleaf.scheduler.errors import StepOutOfOrder
from looseleaf.scheduler.interface import (
    Request,
    SchedulerConfig,
    Sequence,
    SequenceState,
    StepPlan,
    WaitingReason,
    by_precedence,
)
from looseleaf.scheduler.limits import check_request, largest_beams, largest_request
from looseleaf.scheduler.plan import build_plan, check_finished, due_to_end
from looseleaf.scheduler.policy import FairShares, last_of, make_policy
from looseleaf.scheduler.queue import FairQueue, WaitingQueue
from looseleaf.scheduler.running import DecodeSet
from looseleaf.scheduler.runs import DecodeRun, DecodeRuns

NO_PARENTS: Parents = MappingProxyType({})


class Scheduler(DecodeRuns):
    """`add` requests, then alternate `schedule` and `commit` until nothing `has_unfinished`.

    A running sequence is either *prefilling* (memory has slots for all its known tokens, some not computed)
    or *decoding* (all computed but the token sampled last, which has no slot yet).
    Whatever is older in precedence is never preempted for something younger, so the oldest always ends. (With fair
    shares the order between tenants changes; but whoever a step preempts makes room for a token of somebody else.)
    """

    def __init__(self, config: SchedulerConfig, memory: KVMemory) -> None:
        """Raises `ConfigurationError` if the memory has too few rows, or room for no request at all."""
        if config.max_num_seqs > memory.max_num_seqs:
            raise ConfigurationError(
                f"max_num_seqs is {config.max_num_seqs}, but the memory has block tables for {memory.max_num_seqs}."
            )
        self.config = config
        self.memory = memory
        self.largest_request = largest_request(config, memory)
        """Most tokens, prompt and output together, that a request may have."""
        self.num_preemptions = 0
        """Times a sequence lost its blocks, or found none at its fork, and went back to the queue."""
        self.num_preempted_tokens = 0
        """Tokens whose keys and values those preemptions gave up."""
        self.num_recomputed_tokens = 0
        """Tokens that those preemptions dropped from the cache, to be computed again."""
        self._watermark_blocks = math.ceil(config.watermark * memory.num_blocks)
        self._requests: dict[str, Request] = {}
        self._policy = make_policy(config)
        self._shares = self._policy if isinstance(self._policy, FairShares) else None
        self._waiting = (
            WaitingQueue(config.max_bypass) if self._shares is None else FairQueue(config.max_bypass, self._shares)
        )
        self._prefilling: list[Sequence] = []
        self._decoding = DecodeSet(config.max_num_seqs)
        self._beams = BeamGroups(memory, self._prefilling, self._decoding)
        self._num_beam_requests = 0
        self._fork_copies: list[CopyPairs] = []
        self._plan: StepPlan | DecodeRun | None = None
        self._ended_in_flight = False
        self._step = 0
        self._num_added = 0
        self._waiting_reason: WaitingReason | None = None
        self._nothing_admissible = False

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue; those that will fork from one of them not counted."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def waiting(self) -> list[Sequence]:
        return list(self._waiting)

    @property
    def running(self) -> list[Sequence]:
        return sorted(self._prefilling + self._decoding.sequences, key=by_precedence)

    @property
    def waiting_reason(self) -> WaitingReason | None:
        """What the head of the queue lacked in the last `schedule`; None when nobody waits."""
        return self._waiting_reason if self._waiting else None

    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def largest_of(self, prompt_len: int, num_beams: int = 1) -> int:
        """Most tokens, prompt and output together, of each beam of a request; without beams `largest_request`."""
        if num_beams == 1:
            return self.largest_request
        return largest_beams(self.config, self.memory, num_beams, prompt_len)

    def check(self, request: Request) -> None:
        """Raise what `add` would raise for this request under another id, without adding it."""
        num_beams = request.num_samples if request.beams else 1
        check_request(request, self.config, self.largest_of(request.prompt_len, num_beams))

    def add(self, request: Request) -> None:
        """Queue a request. Raises `RequestTooLarge` for what can never run, `InvalidRequest` for nonsense."""
        if request.request_id in self._requests:
            raise InvalidRequest(
                f"Request id {request.request_id!r} is already in use.", hint="Give every request an id of its own."
            )
        self.check(request)
        place = self._policy.place(request, self._num_added)
        for sequence in request.sequences:
            sequence.precedence = (*place, sequence.sample)
        if self._shares is not None:
            self._shares.enter(request)
        self._num_added += 1
        self._num_beam_requests += request.beams
        self._requests[request.request_id] = request
        for sequence in request.sequences:
            if sequence.state is SequenceState.WAITING:
                self._enqueue(sequence)

    def abort(self, request_id: str) -> list[Sequence]:
        """End a request in whatever state, also while a plan is in flight; its blocks are free at once.

        Returns the sequences that this ended: none if the request is unknown or over already.
        """
        request = self._requests.get(request_id)
        if request is None:
            return []
        live = [sequence for sequence in request.sequences if sequence.state is not SequenceState.FINISHED]
        self._ended_in_flight = self._ended_in_flight or bool(self._plan)
        for sequence in live:
            self._end(sequence)
        return live

    def end_sample(self, request_id: str, sample: int) -> None:
        """End one sample as `abort` does; the others of the request go on. No effect on one that is over.

        Raises `InvalidRequest` for a sample that others are to fork from.
        """
        request = self._requests.get(request_id)
        if request is None or (sequence := request.sequences[sample]).state is SequenceState.FINISHED:
            return
        if request.beams or (sequence.num_seats > 1 and sequence.state is not SequenceState.PENDING_FORK):
            raise InvalidRequest(f"Other samples of request {request_id!r} depend on sample {sample}.")
        self._ended_in_flight = self._ended_in_flight or bool(self._plan)
        self._end(sequence)

    def schedule(self, now: float) -> StepPlan:  # noqa: ARG002 (for policies that weigh the time of a step)
        """Decide the next step. Decodes go first, then prefills in progress, then admissions.

        No policy looks at `now`: ageing follows from `Request.arrival`.
        An empty plan needs no commit. Raises `StepOutOfOrder` while another plan is in flight.
        """
        if self._plan:
            raise StepOutOfOrder(f"Step {self._plan.step} is still in flight.", hint="Commit it before the next one.")
        self._step += 1
        self.memory.step = self._step
        copies, self._fork_copies = self._fork_copies, []
        preempted: list[Sequence] = []
        formed = [request for request in self._beams.unformed if self._form(request, copies, preempted)]
        decodes, seq_ids, num_tokens = self._grow_decodes(copies, preempted)
        budget = self.config.max_num_batched_tokens - len(decodes)
        chunks: list[tuple[Sequence, int]] = []
        for sequence in self._prefilling:
            if budget == 0:
                break
            if sequence.num_computed < sequence.prefill_len:  # else a beam that waits for the others
                budget -= self._add_chunk(sequence, budget, chunks)
        num_continued = len(chunks)
        if preempted:
            self._waiting_reason = "blocks"  # those that stay need every block: nobody is admitted on top
        else:
            self._admit(budget, chunks, copies)

        self._plan = build_plan(
            step=self._step,
            decodes=decodes,
            seq_ids=seq_ids,
            num_tokens=num_tokens,
            chunks=chunks,
            copies=copies,
            admitted=[sequence for sequence, _ in chunks[num_continued:]],
            preempted=preempted,
            formed=formed,
        )
        return self._plan

    def due(self, plan: StepPlan) -> list[Sequence]:
        """The sequences for which the token that `plan`, which is in flight, samples is the last they may have."""
        return due_to_end(plan, self._decoding.at_last_token(plan.step))

    def commit(
        self,
        plan: StepPlan,
        finished: Collection[Sequence],
        now: float,  # noqa: ARG002 (as above)
        parents: Parents = NO_PARENTS,
    ) -> None:
        """Record that `plan` was run and every due token sampled; `finished` sequences give back their blocks.

        `parents`: for each request whose beams sampled and go on, the beam that each of them continues (0 for all
        after the prompt). Beams finish together.

        Sequences that `abort` ended while the plan was in flight are passed over. So a plan that failed to run is
        dropped by aborting its requests and committing it, but not before its `copies` are made: among them are those
        of forks that are not in `plan.sequences`, because the budget lets them decode in a later step only.
        Raises `StepOutOfOrder`, or `InvalidCommit` if `finished` contradicts the plan.
        """
        done = set(finished)
        if plan is not self._plan:
            raise StepOutOfOrder(
                f"Step {plan.step} is not in flight.", hint="Commit the plan that schedule() returned last, once."
            )
        check_finished(plan, done, self._decoding.at_last_token(plan.step))
        if self._shares is not None:
            self._shares.charge_outputs(plan.sequences, plan.num_samples.tolist())
        beams = sampled_beams(plan) if self._num_beam_requests else []
        check_parents(beams, done, parents)
        self._plan = None
        seq_ids, num_scheduled, sequences = plan.seq_ids, plan.num_scheduled, plan.sequences
        num_decodes = plan.num_decodes
        if self._ended_in_flight:
            alive = [sequence.state is SequenceState.RUNNING for sequence in sequences]
            seq_ids, num_scheduled = seq_ids[alive], num_scheduled[alive]
            sequences = [sequence for sequence, lives in zip(sequences, alive, strict=True) if lives]
            num_decodes = sum(alive[:num_decodes])
            self._ended_in_flight = False
        self.memory.fill(seq_ids, num_scheduled)
        self._decoding.advance(plan.step)
        for sequence in islice(sequences, num_decodes):
            sequence.num_computed = sequence.num_tokens
            sequence.num_tokens += 1
        for sequence, tokens in zip(sequences[num_decodes:], num_scheduled[num_decodes:].tolist(), strict=True):
            sequence.num_computed += tokens
            if sequence.num_computed == sequence.prefill_len:
                self._complete_prefill(sequence, done)
        for request in beams:
            self._nothing_admissible = False  # dropped beams give blocks back
            if request.sequences[0] not in done:
                self._beams.continue_from(request, parents[request], self._step, self._fork_copies)
        if done:
            for sequence in sequences:  # in the plan's order: that of a set would not be reproducible
                if sequence in done:
                    self._end(sequence)

    def _grow_decodes(
        self, copies: list[CopyPairs], preempted: list[Sequence]
    ) -> tuple[list[Sequence], SequenceIds, NDArray[np.int32]]:
        """Slots for one token of each decode, at the cost of the latest while blocks are short."""
        while True:
            index = self._decoding.pick(self.config.max_num_batched_tokens)
            picked = self._decoding.at(index)
            if not picked[0]:
                return picked
            try:
                copies.append(self.memory.append(picked[1]))
            except OutOfBlocks:
                preempted += self._preempt_latest()
            else:
                self._decoding.mark(index, self._step)
                return picked

    def _form(self, request: Request, copies: list[CopyPairs], preempted: list[Sequence]) -> bool:
        """Make beams decode that wait for memory to fork into, at the cost of the latest; False if it is they."""
        while request.sequences[0].state is SequenceState.RUNNING:
            try:
                self._beams.form(request, self._step - 1, copies)
            except OutOfBlocks:
                preempted += self._preempt_latest()
            else:
                return True
        return False

    def _preempt_latest(self) -> list[Sequence]:
        """Send the latest sequence back to the queue, with all other beams if it is one; returns them."""
        groups = (self._prefilling, self._decoding.sequences)
        latest = last_of(groups) if self._shares is None else self._shares.victim(chain(*groups))
        if not latest.request.beams:
            self._leave_memory(latest)
            self._back_to_queue(latest, dropped=latest.num_computed)
            return [latest]
        dropped = self._beams.disband(latest.request)
        victims = [beam for beam in latest.request.sequences if beam.state is SequenceState.RUNNING]
        for beam in victims:
            self._leave_memory(beam)
            beam.num_computed, beam.state = 0, SequenceState.PENDING_FORK
        self.num_preemptions += len(victims) - 1
        self._back_to_queue(victims[0], dropped=dropped)
        return victims

    def _add_chunk(self, sequence: Sequence, budget: int, chunks: list[tuple[Sequence, int]]) -> int:
        """Compute as many of its tokens as the budget allows; others may share their blocks from this step on."""
        tokens = min(budget, sequence.prefill_len - sequence.num_computed)
        chunks.append((sequence, tokens))
        if sequence.prefix is not None:
            self.memory.register(sequence.seq_id, sequence.prefix.tokens, sequence.num_computed + tokens)
        return tokens

    def _admit(self, budget: int, chunks: list[tuple[Sequence, int]], copies: list[CopyPairs]) -> None:
        """Admit while budget, seats and blocks allow, and append the first chunk of each."""
        if self._nothing_admissible and self._shares is None:  # else the order may be another now
            return
        self._waiting.refresh()
        seats = (
            self.config.max_num_seqs - len(self._decoding) - sum(sequence.num_seats for sequence in self._prefilling)
        )
        blocked = 0
        self._waiting_reason = "budget"
        while budget and (sequence := self._waiting.candidate(blocked)):
            obstacle = self._obstacle(sequence, seats)
            if obstacle is None:
                seats -= sequence.num_seats
                self._enter_memory(sequence, copies)
                budget -= self._add_chunk(sequence, budget, chunks)
            else:
                if blocked == 0:
                    self._waiting_reason = obstacle
                if seats == 0:
                    break
                blocked += 1
        # Free blocks and seats only shrink until something ends or is added: no need to look again before.
        self._nothing_admissible = budget > 0

    def _obstacle(self, sequence: Sequence, seats: int) -> WaitingReason | None:
        if sequence.num_seats > seats:
            return "seats"
        request = sequence.request
        keep_free = self._watermark_blocks if self.num_running else 0
        if self._num_beam_requests:
            keep_free += self._beams.blocks_promised() + self._beams.blocks_to_begin(request)
        fits = self.memory.can_admit(
            sequence.prefill_len,
            final_tokens=request.cached_len,
            keep_free=keep_free,
            prefix=sequence.prefix,
            num_sequences=request.num_samples if request.beams else 1,
        )
        return None if fits else "blocks"

    def _enter_memory(self, sequence: Sequence, copies: list[CopyPairs]) -> None:
        request = sequence.request
        if sequence.prefix is None:
            sequence.seq_id = self.memory.admit(
                sequence.prefill_len, final_tokens=request.cached_len, request_id=request.request_id
            )
        else:
            admission = self.memory.admit_prefix(
                sequence.prefix, final_tokens=request.cached_len, request_id=request.request_id
            )
            sequence.seq_id = admission.seq
            sequence.num_cached = sequence.num_computed = admission.num_cached
            copies.append(admission.copies)
            if request.num_cached_prompt_tokens is None:
                request.num_cached_prompt_tokens = min(admission.num_cached, request.prompt_len)
                request.divergence = admission.divergence
            if sequence.num_preemptions:
                self.num_recomputed_tokens -= min(admission.num_cached, sequence.num_dropped)
        if self._shares is not None:
            self._shares.charge_prompt(sequence)
        self._waiting.take(sequence)
        sequence.state = SequenceState.RUNNING
        insort(self._prefilling, sequence, key=by_precedence)

    def _leave_memory(self, sequence: Sequence) -> None:
        self.memory.release(sequence.seq_id)
        sequence.seq_id = -1
        if sequence in self._prefilling:
            self._prefilling.remove(sequence)
        else:
            self._decoding.remove(sequence)

    def _complete_prefill(self, sequence: Sequence, done: set[Sequence]) -> None:
        """It has sampled a token; if that was the prompt's first, its siblings fork before it may leave."""
        if sequence.request.lineage:
            self._beams.prefilled(sequence, self._step)
            return
        sequence.num_tokens += 1
        if sequence.request.beams:
            for beam in sequence.request.pending_forks:
                beam.num_tokens = sequence.num_tokens
                if beam in done:
                    self._end(beam)
            return
        self._prefilling.remove(sequence)
        self._decoding.add(sequence, self._step)
        for sibling in sequence.request.pending_forks:
            sibling.num_tokens = sequence.num_tokens
            if sibling in done:
                self._end(sibling)
            else:
                self._fork(sequence, sibling)

    def _fork(self, parent: Sequence, sibling: Sequence) -> None:
        request = parent.request
        try:
            seq_id, copies = self.memory.fork(
                parent.seq_id, request_id=request.request_id, final_tokens=request.cached_len
            )
        except OutOfBlocks:  # contiguous memory: it computes the prompt on its own later
            self._back_to_queue(sibling, dropped=parent.num_computed)
            return
        self._fork_copies.append(copies)
        sibling.seq_id, sibling.num_computed, sibling.state = seq_id, parent.num_computed, SequenceState.RUNNING
        self._decoding.add(sibling, self._step)

    def _back_to_queue(self, sequence: Sequence, *, dropped: int) -> None:
        self.num_preemptions += 1
        self.num_preempted_tokens += dropped
        self.num_recomputed_tokens += dropped
        sequence.num_preemptions += 1
        sequence.num_dropped = dropped
        sequence.num_computed = 0
        self._enqueue(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.WAITING
        self._waiting.add(sequence)
        self._nothing_admissible = False

    def _end(self, sequence: Sequence) -> None:
        if sequence.state is SequenceState.RUNNING:
            self._leave_memory(sequence)
        elif sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        sequence.state = SequenceState.FINISHED
        self._nothing_admissible = False
        request = sequence.request
        if all(other.state is SequenceState.FINISHED for other in request.sequences):
            del self._requests[request.request_id]
            self._num_beam_requests -= request.beams
            self._beams.forget(request)
            if self._shares is not None:
                self._shares.leave(request)
