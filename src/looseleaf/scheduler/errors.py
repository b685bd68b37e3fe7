"""Typed errors for callers that break the schedule/commit protocol. Nothing has changed when one is raised."""

from __future__ import annotations

from looseleaf.errors import LooseleafError


class SchedulerError(LooseleafError):
    """Root of the scheduler's own errors."""


class StepOutOfOrder(SchedulerError):
    """`schedule` before the last plan was committed, or `commit` of any plan but the one in flight."""


class InvalidCommit(SchedulerError):
    """What is reported as finished contradicts the plan: a sequence that sampled nothing, or one left
    running at its last token."""
