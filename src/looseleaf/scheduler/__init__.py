"""Who runs next: queues, the token budget of a step, admission and preemption. No tensors, no clock."""

from looseleaf.scheduler.errors import InvalidCommit, SchedulerError, StepOutOfOrder
from looseleaf.scheduler.interface import Request, SchedulerConfig, Sequence, SequenceState, StepPlan, WaitingReason
from looseleaf.scheduler.scheduler import Scheduler

__all__ = [
    "InvalidCommit",
    "Request",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerError",
    "Sequence",
    "SequenceState",
    "StepOutOfOrder",
    "StepPlan",
    "WaitingReason",
]
