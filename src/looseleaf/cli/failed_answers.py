"""Answers that the engine had to give up: they must not pass for answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from looseleaf.cli.command import UNEXPECTED
from looseleaf.cli.consoles import counted, warn

if TYPE_CHECKING:
    from looseleaf.engine.workload import WorkloadRun


def failures(run: WorkloadRun) -> list[str]:
    """What went wrong, for each answer that failed."""
    return [str(o.stop_reason) for result in run.outputs for o in result.outputs if o.finish_reason == "error"]


def exit_if_any_failed(runs: Iterable[WorkloadRun]) -> None:
    """Warn, --quiet or not, and leave with exit code 1."""
    answers, failed = 0, []
    for run in runs:
        answers += sum(len(result.outputs) for result in run.outputs)
        failed += failures(run)
    if failed:
        warn(f"{counted(len(failed), 'answer')} of {answers:,} failed: {failed[0]}")
        raise typer.Exit(UNEXPECTED)
