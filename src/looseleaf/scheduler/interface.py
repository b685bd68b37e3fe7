"""What goes into the scheduler and what comes out: requests, sequences, and the plan of one step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from looseleaf.errors import ConfigurationError
from looseleaf.memory.interface import CopyPairs, SequenceIds
from looseleaf.memory.prefix import Divergence, Prefix

PolicyName: TypeAlias = Literal["fcfs", "priority", "fair"]
WaitingReason: TypeAlias = Literal["blocks", "seats", "budget"]


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    max_num_batched_tokens: int = 2048
    """Token budget of one step: decode tokens and prefill chunks together."""
    max_num_seqs: int = 64
    """Sequences that may run (hold blocks) at once; a request with n samples counts n."""
    max_model_len: int = 2048
    """Longest sequence (prompt and output), in tokens."""
    watermark: float = 0.01
    """Share of the pool that an admission must leave free, so that running sequences can grow. 0 to 1."""
    max_bypass: int = 16
    """Smaller requests that may be admitted past a blocked head of the queue before everyone waits for it."""
    policy: PolicyName = "fcfs"
    """Who goes first, and who gives way last when blocks run out: "fcfs" (first come first served), "priority" (the
    smaller `Request.priority`), or "fair" (the tenant that has got least for its weight). Nobody is preempted so that
    another can be admitted."""
    priority_ageing_seconds: float = 10.0
    """Priority: who waits this long counts as one level more urgent, so that nobody starves."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)} but must be at least 1.")
        if not 0 <= self.watermark < 1:
            raise ConfigurationError(f"watermark is {self.watermark} but must be at least 0 and below 1.")
        if self.max_bypass < 0:
            raise ConfigurationError(f"max_bypass is {self.max_bypass} but must be at least 0.")
        if self.policy not in get_args(PolicyName):
            raise ConfigurationError(
                f"The scheduling policy {self.policy!r} is unknown.", hint=f"Use {', '.join(get_args(PolicyName))}."
            )
        if not 0 < self.priority_ageing_seconds < math.inf:
            raise ConfigurationError(
                f"priority_ageing_seconds is {self.priority_ageing_seconds} but must be a number above 0."
            )


class SequenceState(Enum):
    WAITING = "waiting"
    """In the queue, holds no blocks (also after a preemption)."""
    RUNNING = "running"
    PENDING_FORK = "pending fork"
    """A further sample of a request whose prompt is still being computed by sample 0."""
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Sequence:
    """One sample of a request. Counts only; the tokens themselves are the engine's."""

    request: Request
    sample: int
    num_tokens: int
    """Tokens known: prompt plus those sampled so far."""
    num_computed: int = 0
    """Tokens whose keys and values are in the cache."""
    state: SequenceState = SequenceState.WAITING
    seq_id: int = -1
    """The memory manager's id while RUNNING, else -1. It changes when the sequence is preempted and returns."""
    prefix: Prefix | None = None
    """Its known tokens, for the prefix cache; whoever owns the tokens renews it when the sequence is preempted.
    None: it shares nothing with other requests."""
    num_cached: int = 0
    """Tokens that came from the prefix cache when it was admitted last."""
    num_preemptions: int = 0
    num_dropped: int = 0
    """Computed tokens that its last preemption dropped."""
    precedence: tuple[float, ...] = ()
    """(place of its request, sample): the smaller runs first, the larger is preempted first. Set by the scheduler: its
    policy says what a place is; first come first served, the order of `add`."""
    num_bypasses: int = 0
    """Smaller requests that were admitted past it while it was the head of the queue, in its whole life."""

    @property
    def prefill_len(self) -> int:
        """Tokens to compute before it decodes. Beams that return from a preemption leave the last one, so that all
        sample in one step."""
        request = self.request
        if not request.lineage:
            return self.num_tokens
        return request.common_len if request.pending_forks else self.num_tokens - 1

    @property
    def num_seats(self) -> int:
        """Itself and those that will fork from it; once it has forked, or was forked, none are pending."""
        return 1 if self.request.num_samples == 1 else 1 + len(self.request.pending_forks)

    def __str__(self) -> str:
        return f"sample {self.sample} of request {self.request.request_id!r}"


by_precedence = attrgetter("precedence")


@dataclass(eq=False, slots=True)
class Request:
    """`sequences[s]` is sample `s`; only sample 0 computes the prompt, the others fork from it."""

    request_id: str
    prompt_len: int
    max_tokens: int
    """Most tokens each sample may generate (the engine has bounded it by max_model_len)."""
    num_samples: int = 1
    beams: bool = False
    """The samples are beams: they advance in lockstep, and each step says which of them each one continues."""
    known: tuple[int | None, ...] = ()
    """Of a request that goes on where an earlier run left off: output tokens that each sample has; None: the sample has
    ended. Each of the others computes what it knows by itself. Empty: the request is new."""
    arrival: float = 0.0
    priority: int = 0
    """For the policy "priority": the smaller is more urgent."""
    tenant: str = ""
    """For the policy "fair": who pays for it."""
    weight: float = 1.0
    """The tenant's: of two that always have requests waiting, one of weight 2 gets twice the service of one of 1."""
    prefix: Prefix | None = None
    """The prompt, for the prefix cache."""
    num_cached_prompt_tokens: int | None = None
    """Prompt tokens that were not computed for this request but found in the prefix cache; None: not admitted yet."""
    divergence: Divergence | None = None
    """Where the prompt, when it was admitted, first differed from the cached sequence most like it."""
    sequences: list[Sequence] = field(default_factory=list)
    lineage: list[tuple[int, ...]] = field(default_factory=list)
    """Beams: for each token of the output so far, the beam that each one continued with it."""
    common_len: int = 0
    """Beams: tokens that the first one computes for all of them, before they fork from it."""

    def __post_init__(self) -> None:
        self.sequences = [
            Sequence(self, s, self.prompt_len, state=SequenceState.PENDING_FORK if s else SequenceState.WAITING)
            for s in range(self.num_samples)
        ]
        for sequence, count in zip(self.sequences, self.known, strict=False):
            sequence.state = SequenceState.FINISHED if count is None else SequenceState.WAITING
            sequence.num_tokens += count or 0
        for sequence in self.sequences[:1]:  # an invalid request may have none
            sequence.prefix = self.prefix

    @property
    def final_len(self) -> int:
        return self.prompt_len + self.max_tokens

    @property
    def cached_len(self) -> int:
        """Most tokens a sample ever has in the cache: the last one sampled is never computed."""
        return self.final_len - 1

    @property
    def num_live_tokens(self) -> int:
        """Tokens known of all samples that have not ended: how far the request has come."""
        return sum(each.num_tokens for each in self.sequences if each.state is not SequenceState.FINISHED)

    @property
    def num_common_steps(self) -> int:
        """Output tokens that all beams have in common."""
        beams = set(range(self.num_samples))
        for step in reversed(range(len(self.lineage))):
            if len(beams) == 1:
                return step + 1
            beams = {self.lineage[step][beam] for beam in beams}
        return 0

    @property
    def pending_forks(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if sequence.state is SequenceState.PENDING_FORK]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the engine runs next. All arrays have one entry per scheduled sequence, decodes first."""

    step: int
    sequences: list[Sequence]
    seq_ids: SequenceIds
    num_computed: NDArray[np.int32]
    """Tokens of each sequence in the cache before this step; its first query position."""
    num_scheduled: NDArray[np.int32]
    """Query tokens of each sequence in this step (1 for a decode)."""
    num_samples: NDArray[np.int32]
    """Tokens to sample from the sequence's last query row: 0 while its prompt is incomplete; 1; or, when
    sample 0 of a request completes the prompt for the first time, one for each sample of the request
    still wanted (sample 0 itself first, then the PENDING_FORK ones in order)."""
    num_decodes: int
    """The first `num_decodes` entries have `num_scheduled == 1` and sample one token."""
    copies: CopyPairs
    """Block copies to carry out before anything is written."""
    admitted: list[Sequence]
    preempted: list[Sequence]
    formed: list[Request]
    """Beams that forked since the last plan, having been preempted or found no room before: they have new ids."""

    @property
    def num_tokens(self) -> int:
        return int(self.num_scheduled.sum())

    def __bool__(self) -> bool:
        return bool(self.sequences)
