"""Counts that go on when the engine's process, which counts from nothing, is replaced."""

from __future__ import annotations

import msgspec

from looseleaf.server.interface import EngineStats, ModelInfo

_COUNTS = (
    "step",
    "preemptions",
    "preempted_tokens",
    "recomputed_tokens",
    "prefix_query_tokens",
    "prefix_hit_tokens",
    "evictions",
    "copied_blocks",
    "prompt_tokens",
    "generated_tokens",
    "clean_audits",
    "failed_audits",
)


class EngineTotals:
    """Gives the newest snapshot, with counts that are those of all processes so far: they never go down."""

    def __init__(self) -> None:
        self._before = EngineStats()
        self._newest = EngineStats()

    def begin(self, info: ModelInfo) -> None:
        """A new process is ready; all its blocks are free."""
        self._before = self.stats()
        self._newest = EngineStats(
            block_size=info.block_size, total_blocks=info.num_blocks, free_blocks=info.num_blocks
        )

    def take(self, stats: EngineStats) -> None:
        """A snapshot of the process that began last."""
        self._newest = stats

    def stats(self) -> EngineStats:
        before, newest = self._before, self._newest
        counts = {name: getattr(before, name) + getattr(newest, name) for name in _COUNTS}
        seconds = dict(before.step_seconds)
        for phase, value in newest.step_seconds.items():
            seconds[phase] = seconds.get(phase, 0.0) + value
        return msgspec.structs.replace(newest, **counts, step_seconds=seconds)
