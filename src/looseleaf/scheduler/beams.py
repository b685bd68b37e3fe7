"""Beams: sequences of one request that advance in lockstep and continue from one another.

The beams of a request are computed in the same steps, or none of them is. After each step every beam goes on from
one of them: the sequences stay, what changes is whose blocks they hold. A beam that is preempted takes the others
along. They return as they came: the first computes what all have in common, the others fork from it, each computes what
is its own, and then all decode together again.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from collections.abc import Set as AbstractSet
from contextlib import suppress

import numpy as np

from looseleaf.memory.errors import OutOfBlocks
from looseleaf.memory.interface import CopyPairs, KVMemory
from looseleaf.scheduler.errors import InvalidCommit
from looseleaf.scheduler.interface import Request, Sequence, SequenceState, StepPlan, by_precedence
from looseleaf.scheduler.running import DecodeSet

Parents = Mapping[Request, Listed[int]]
"""By request: for each beam, the one of the beams so far that it continues."""


class BeamGroups:
    """Moves the beams of requests between prefilling and decoding, always all of them.

    Until a group is complete its running members are among the prefilling sequences, with or without something
    left to compute.
    """

    def __init__(self, memory: KVMemory, prefilling: list[Sequence], decoding: DecodeSet) -> None:
        self._memory = memory
        self._prefilling = prefilling
        self._decoding = decoding
        self._unformed: list[Request] = []

    @property
    def unformed(self) -> list[Request]:
        """Groups whose first beam has computed what all have in common, the others still to fork; oldest first."""
        return sorted(self._unformed, key=lambda request: request.sequences[0].precedence)

    def continue_from(self, request: Request, parents: Listed[int], step: int, copies: list[CopyPairs]) -> None:
        """Each beam has sampled a token in `step`, as a continuation of the beam `parents[place]`.

        A beam that nobody continues gives its blocks back; one that somebody does passes them on, to itself if it
        can; whoever else continues it forks.
        """
        request.lineage.append(tuple(parents))
        beams = request.sequences
        if len(request.lineage) == 1:
            request.common_len = beams[0].num_computed
            self._unformed.append(request)
            with suppress(OutOfBlocks):  # in contiguous memory; `schedule` makes room
                self.form(request, step, copies)
            return
        held = [beam.seq_id for beam in beams]
        heirs: dict[int, Sequence] = {}
        for beam, parent in zip(beams, parents, strict=True):
            if parent not in heirs or beams[parent] is beam:
                heirs[parent] = beam
        for place, seq_id in enumerate(held):
            if place not in heirs:
                self._memory.release(seq_id)
        for beam, parent in zip(beams, parents, strict=True):
            if heirs[parent] is beam:
                beam.seq_id = held[parent]
            else:  # never out of blocks: one as large has just been released
                self._fork(beam, held[parent], copies)
            self._decoding.rebind(beam)

    def form(self, request: Request, step: int, copies: list[CopyPairs]) -> None:
        """Fork all beams from the first one, and take slots for what each has of its own.

        `step`: the one in which they sampled their newest token, or an earlier one. Happens whole or raises
        `OutOfBlocks`: to be called again when there is more room, or the group to be disbanded.
        """
        first, others = request.sequences[0], request.pending_forks
        own = first.num_tokens - 1 - first.num_computed
        num_copies = len(copies)
        try:
            for beam in others:
                self._fork(beam, first.seq_id, copies)
            if own:
                ids = np.array([beam.seq_id for beam in request.sequences], np.int64)
                copies.append(self._memory.append(ids, own))
        except OutOfBlocks:
            del copies[num_copies:]
            for beam in others:
                if beam.seq_id >= 0:
                    self._memory.release(beam.seq_id)
                    beam.seq_id = -1
            raise
        for beam in others:
            beam.num_computed, beam.state = first.num_computed, SequenceState.RUNNING
            insort(self._prefilling, beam, key=by_precedence)
        first.prefix = None  # the tokens that it names end here
        self._unformed.remove(request)
        self._decode_if_complete(request, step)

    def prefilled(self, sequence: Sequence, step: int) -> None:
        """A beam of a group that has been preempted has computed again all that it can on its own."""
        if sequence.request.pending_forks:
            self._unformed.append(sequence.request)
        else:
            self._decode_if_complete(sequence.request, step)

    def disband(self, request: Request) -> int:
        """The group is about to leave the memory; returns the tokens to be computed again for that.

        The first beam is to return with what all have in common, and the others to fork from it.
        """
        self.forget(request)
        computed = [beam.num_computed for beam in request.sequences if beam.state is SequenceState.RUNNING]
        if request.lineage:
            common = request.prompt_len + request.num_common_steps
            request.common_len = min(common, request.sequences[0].num_tokens - 1)
        if len(computed) == 1:
            return computed[0]
        return request.common_len + sum(tokens - request.common_len for tokens in computed)

    def forget(self, request: Request) -> None:
        if request in self._unformed:
            self._unformed.remove(request)

    def blocks_to_begin(self, request: Request) -> int:
        """Blocks that the group takes beyond those of its first beam before each has sampled one more token; of a
        request without beams none."""
        if not request.beams:
            return 0
        size, first = self._memory.block_size, request.sequences[0]
        length = first.num_tokens if request.lineage else min(first.num_tokens + 1, request.cached_len)
        if length == first.prefill_len:
            return 0  # one token each: they end without ever having forked
        shared = first.prefill_len // size
        return shared + request.num_samples * (-(-length // size) - shared) - -(-first.prefill_len // size)

    def blocks_promised(self) -> int:
        """The same, of all groups in memory that have not forked yet."""
        return sum(self.blocks_to_begin(first.request) for first in self._prefilling if first.request.pending_forks)

    def _decode_if_complete(self, request: Request, step: int) -> None:
        if any(beam.num_computed < beam.prefill_len for beam in request.sequences):
            return
        for beam in request.sequences:
            self._prefilling.remove(beam)
            self._decoding.add(beam, step)

    def _fork(self, beam: Sequence, seq_id: int, copies: list[CopyPairs]) -> None:
        request = beam.request
        beam.seq_id, made = self._memory.fork(seq_id, request_id=request.request_id, final_tokens=request.cached_len)
        copies.append(made)


def sampled_beams(plan: StepPlan) -> list[Request]:
    """Requests whose beams sample in `plan`, of those that have not ended since; in the plan's order."""
    sampled = {
        sequence.request: None
        for sequence, samples in zip(plan.sequences, plan.num_samples.tolist(), strict=True)
        if samples and sequence.request.beams and sequence.state is SequenceState.RUNNING
    }
    return list(sampled)


def check_parents(sampled: list[Request], finished: AbstractSet[Sequence], parents: Parents) -> None:
    """Raise `InvalidCommit` unless every request in `sampled` has ended, or says what its beams continue."""
    for request in sampled:
        ending = sum(beam in finished for beam in request.sequences)
        if ending == request.num_samples:
            continue
        if ending:
            raise InvalidCommit(
                f"{ending} of the {request.num_samples} beams of request {request.request_id!r} are reported as "
                "finished.",
                hint="Beams end together.",
            )
        known = len(request.sequences) if request.lineage else 1
        given = parents.get(request, ())
        if len(given) != request.num_samples or not all(0 <= parent < known for parent in given):
            raise InvalidCommit(
                f"Request {request.request_id!r} goes on with {request.num_samples} beams, each a continuation of one "
                f"of {known}, and these are given: {list(given)}."
            )
