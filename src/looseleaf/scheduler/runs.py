"""Steps in a row that need no decision: all running sequences decode, and nobody comes or goes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.errors import OutOfBlocks
from looseleaf.memory.interface import CopyPairs, KVMemory, SequenceIds
from looseleaf.scheduler.errors import InvalidCommit, StepOutOfOrder
from looseleaf.scheduler.interface import SchedulerConfig, Sequence, SequenceState, StepPlan, WaitingReason
from looseleaf.scheduler.policy import FairShares
from looseleaf.scheduler.queue import WaitingQueue
from looseleaf.scheduler.running import DecodeSet


class Outlook(NamedTuple):
    """What lies ahead if nothing is added or aborted."""

    num_seqs: int
    """Sequences, each of which decodes one token in every step."""
    context_tokens: int
    """Tokens that the first step attends to: the known ones of all sequences."""
    num_steps: int


@dataclass(frozen=True, slots=True, eq=False)
class DecodeRun:
    """`num_steps` steps at once; arrays have one entry per sequence unless said otherwise."""

    step: int
    """The last of them."""
    num_steps: int
    sequences: list[Sequence]
    seq_ids: SequenceIds
    num_tokens: NDArray[np.int32]
    """Known before the first step: all but the last of them are in the cache."""
    copies: CopyPairs
    """Block copies to carry out before anything is written."""
    blocks_taken: NDArray[np.int64]
    """By step: blocks that the sequences began, copies included."""


def check_run(run: DecodeRun, finished: AbstractSet[Sequence], due: list[Sequence]) -> None:
    """Raise `InvalidCommit` unless `finished` are among the sequences of `run`, or over, and include those `due`."""
    known = set(run.sequences) if finished else set()
    for sequence in finished:
        if sequence not in known and sequence.state is not SequenceState.FINISHED:
            raise InvalidCommit(
                f"The steps up to {run.step} sampled no token of {sequence}, which is reported as finished.",
                hint="End a request outside its step with abort().",
            )
    for sequence in due:
        if sequence not in finished:
            raise InvalidCommit(
                f"Step {run.step} sampled the last token that {sequence} may have, number "
                f"{sequence.request.final_len}, and it is not reported as finished."
            )


class DecodeRuns(ABC):
    """The part of the scheduler that moves on many steps at once; what it works on is the scheduler's."""

    config: SchedulerConfig
    memory: KVMemory
    _plan: StepPlan | DecodeRun | None
    _prefilling: list[Sequence]
    _decoding: DecodeSet
    _waiting: WaitingQueue
    _shares: FairShares | None
    _fork_copies: list[CopyPairs]
    _num_beam_requests: int
    _ended_in_flight: bool
    _nothing_admissible: bool
    _waiting_reason: WaitingReason | None
    _step: int

    @abstractmethod
    def _end(self, sequence: Sequence) -> None: ...

    def outlook(self, most: int) -> Outlook | None:
        """The next steps, if all that they do is to decode the same sequences: at least 1, at most `most`.

        None: `schedule` has more to decide. Nothing changes; whatever is added or aborted meanwhile changes the answer.
        """
        count = len(self._decoding)
        if not self._only_decodes():
            return None
        _, seq_ids, num_tokens = self._decoding.at(slice(0, count))
        steps = self.memory.appendable_steps(seq_ids, min(most, self._decoding.steps_to_next_end()))
        return Outlook(count, int(np.add.reduce(num_tokens, dtype=np.int64)), steps) if steps else None

    def schedule_run(self, num_steps: int) -> DecodeRun:
        """The next `num_steps` steps at once, not more than `outlook` says: what as many calls of `schedule` and
        `commit` would decide and do. To be committed, once they were run, by `commit_run`.

        Raises `StepOutOfOrder` while a plan is in flight or if there is more to decide, and `OutOfBlocks`.
        """
        if not self._only_decodes() or not 1 <= num_steps <= self._decoding.steps_to_next_end():
            raise StepOutOfOrder(
                f"The next {num_steps} steps do more than decode the same sequences.", hint="Ask outlook() before."
            )
        index = slice(0, len(self._decoding))
        sequences, seq_ids, num_tokens = self._decoding.at(index)
        last = self._step + num_steps
        self.memory.step = last
        try:
            copies, blocks_taken = self.memory.append_steps(seq_ids, num_steps)
        except OutOfBlocks:
            self.memory.step = self._step
            raise
        if self._shares is not None or not self._nothing_admissible:
            budget = self.config.max_num_batched_tokens - len(sequences)
            self._waiting_reason = "seats" if budget and self._waiting else "budget"
            self._nothing_admissible = budget > 0
        self._step = last
        self._decoding.mark(index, last)
        self._plan = DecodeRun(last, num_steps, sequences, seq_ids, num_tokens, copies, blocks_taken)
        return self._plan

    def due_in_run(self, run: DecodeRun) -> list[Sequence]:
        """The sequences for which the last token of `run`, which is in flight, is the last they may have."""
        return self._decoding.at_last_token(run.step, run.num_steps)

    def commit_run(self, run: DecodeRun, finished: Collection[Sequence]) -> None:
        """As `commit`: the steps of `run` were run; `finished` sampled their last token in the last of them."""
        done = set(finished)
        if run is not self._plan:
            raise StepOutOfOrder(f"The steps up to {run.step} are not in flight.", hint="Commit each run once.")
        check_run(run, done, self.due_in_run(run))
        if self._shares is not None:
            self._shares.charge_run(run.sequences, run.num_steps)
        self._plan = None
        sequences, seq_ids = run.sequences, run.seq_ids
        if self._ended_in_flight:
            alive = [sequence.state is SequenceState.RUNNING for sequence in sequences]
            seq_ids = seq_ids[alive]
            sequences = [sequence for sequence, lives in zip(sequences, alive, strict=True) if lives]
            self._ended_in_flight = False
        self.memory.fill(seq_ids, run.num_steps)
        self._decoding.advance(self._step, run.num_steps)
        for sequence in sequences:
            sequence.num_tokens += run.num_steps
            sequence.num_computed = sequence.num_tokens - 1
        if done:
            for sequence in sequences:
                if sequence in done:
                    self._end(sequence)

    def _only_decodes(self) -> bool:
        """The next step decodes everything that runs, if blocks suffice, and does nothing else."""
        count = len(self._decoding)
        budget = self.config.max_num_batched_tokens - count
        if self._plan or self._prefilling or self._num_beam_requests or self._fork_copies or budget < 0 or not count:
            return False
        if not self._waiting or (self._nothing_admissible and self._shares is None):
            return True
        # In whatever order they stand, nobody is admitted.
        return budget == 0 or count == self.config.max_num_seqs
