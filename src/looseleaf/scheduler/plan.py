"""From decisions to the arrays of a `StepPlan`, and the check of what comes back for it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.interface import NO_COPIES, CopyPairs, SequenceIds
from looseleaf.scheduler.errors import InvalidCommit
from looseleaf.scheduler.interface import Request, Sequence, SequenceState, StepPlan


def build_plan(
    *,
    step: int,
    decodes: list[Sequence],
    seq_ids: SequenceIds,
    num_tokens: NDArray[np.int32],
    chunks: list[tuple[Sequence, int]],
    copies: list[CopyPairs],
    admitted: list[Sequence],
    preempted: list[Sequence],
    formed: list[Request],
) -> StepPlan:
    """`seq_ids` and `num_tokens` (known, not computed) are those of the decodes; `chunks` says how many
    tokens of each prefilling sequence are computed; `copies` are in the order in which they were decided."""
    num_computed = num_tokens - 1
    num_scheduled = np.ones(len(decodes), np.int32)
    num_samples = num_scheduled
    if chunks:
        seq_ids = np.concatenate([seq_ids, np.array([sequence.seq_id for sequence, _ in chunks], np.int64)])
        num_computed = _extended(num_computed, [sequence.num_computed for sequence, _ in chunks])
        num_samples = _extended(num_scheduled, [_samples(sequence, tokens) for sequence, tokens in chunks])
        num_scheduled = _extended(num_scheduled, [tokens for _, tokens in chunks])
    return StepPlan(
        step=step,
        sequences=decodes + [sequence for sequence, _ in chunks],
        seq_ids=seq_ids,
        num_computed=num_computed,
        num_scheduled=num_scheduled,
        num_samples=num_samples,
        num_decodes=len(decodes),
        copies=_joined(copies),
        admitted=admitted,
        preempted=preempted,
        formed=formed,
    )


def due_to_end(plan: StepPlan, decodes_at_last_token: list[Sequence]) -> list[Sequence]:
    """The sequences for which the token that `plan` samples is the last allowed, in the plan's order."""
    due = list(decodes_at_last_token)
    for sequence in _first_samplers(plan):
        if sequence.num_tokens + 1 >= sequence.request.final_len:
            due += [sequence, *sequence.request.pending_forks]
    return due


def check_finished(plan: StepPlan, finished: AbstractSet[Sequence], decodes_at_last_token: list[Sequence]) -> None:
    """Raise `InvalidCommit` unless `finished` sampled a token in `plan`, or ended since, and includes
    every sequence that may have no token more."""
    sampled = set(plan.sequences[: plan.num_decodes]) if finished else set()
    for sequence in _first_samplers(plan) if finished else ():
        sampled.update((sequence, *sequence.request.pending_forks))
    for sequence in finished:
        if sequence not in sampled and sequence.state is not SequenceState.FINISHED:
            raise InvalidCommit(
                f"Step {plan.step} sampled no token of {sequence}, which is reported as finished.",
                hint="End a request outside its step with abort().",
            )
    for sequence in due_to_end(plan, decodes_at_last_token):
        if sequence not in finished:
            raise InvalidCommit(
                f"Step {plan.step} sampled the last token that {sequence} may have, number "
                f"{sequence.request.final_len}, and it is not reported as finished."
            )


def _first_samplers(plan: StepPlan) -> list[Sequence]:
    """Those that complete their prefill in `plan` and have not ended since."""
    chunks = zip(plan.sequences[plan.num_decodes :], plan.num_samples[plan.num_decodes :].tolist(), strict=True)
    return [sequence for sequence, samples in chunks if samples and sequence.state is SequenceState.RUNNING]


def _extended(array: NDArray[np.int32], values: list[int]) -> NDArray[np.int32]:
    return np.concatenate([array, np.array(values, np.int32)])


def _samples(sequence: Sequence, tokens: int) -> int:
    complete = sequence.num_computed + tokens == sequence.num_tokens
    return sequence.num_seats if complete else 0


def _joined(copies: list[CopyPairs]) -> CopyPairs:
    if len(copies) == 1:
        return copies[0]
    if not copies:
        return NO_COPIES
    return CopyPairs(
        np.concatenate([pairs.source for pairs in copies]), np.concatenate([pairs.destination for pairs in copies])
    )
