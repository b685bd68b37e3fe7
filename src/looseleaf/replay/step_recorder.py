"""Takes down every step, and works them off in batches: many steps cost few calls."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.interface import SlotUsage
from looseleaf.replay.histogram import LogHistogram
from looseleaf.replay.timeline import REASONS, Reason, Timeline

_CAPACITY = 4096
_TOKENS, _RESERVED, _FREE, _CACHED, _SAVED, _RUNNING, _WAITING, _GAPS, _REASON = range(9)


class StepRecorder:
    """The sums are formed step by step in order, and always after the same steps, however these are handed in."""

    def __init__(self, num_slots: int, block_size: int, timeline: Timeline, itl: LogHistogram) -> None:
        """`itl`: gets the time between tokens, of those that were sampled in two steps in a row."""
        self.num_steps = 0
        self.peak_blocks = 0
        """The most that were held, running, waiting at once; known after `flush`."""
        self.peak_running = 0
        self.peak_waiting = 0
        self._num_slots = num_slots
        self._block_size = block_size
        self._timeline = timeline
        self._itl = itl
        self._starts: NDArray[np.float64] = np.empty(_CAPACITY)
        self._seconds: NDArray[np.float64] = np.empty(_CAPACITY)
        self._states: NDArray[np.int64] = np.empty((_CAPACITY, 9), np.int64)
        self._count = 0

    @property
    def room(self) -> int:
        """Steps that may be handed in at once."""
        return _CAPACITY - self._count

    def add(
        self,
        start: float,
        seconds: float,
        usage: SlotUsage,
        *,
        new_tokens: int,
        running: int,
        waiting: int,
        reason: Reason,
        gaps: int,
    ) -> None:
        """One step. `usage`: before its `new_tokens` are computed; `gaps`: tokens sampled of sequences that sampled one
        in the step before."""
        at = self._count
        self._starts[at] = start
        self._seconds[at] = seconds
        self._states[at] = (
            usage.token_states + new_tokens,
            usage.reserved - new_tokens,
            usage.free,
            usage.cached,
            usage.saved_by_sharing,
            running,
            waiting,
            gaps,
            REASONS.index(reason),
        )
        self._added(1)

    def add_run(
        self,
        starts: NDArray[np.float64],
        seconds: NDArray[np.float64],
        before: SlotUsage,
        *,
        blocks_taken: NDArray[np.int64],
        copies: int,
        running: int,
        waiting: int,
        reason: Reason,
        late: int,
    ) -> None:
        """At most `room` steps in which `running` sequences decode. `before`: the slots before the first of them.
        `late`: sequences that did not sample a token in the step before the first."""
        count = len(starts)
        at = self._count
        self._starts[at : at + count] = starts
        self._seconds[at : at + count] = seconds
        rows = self._states[at : at + count]
        tokens = _ORDINALS[:count] * running
        # Contiguous memory has reserved the slots; in paged memory nothing is left of what was reserved for prompts.
        rows[:, _RESERVED] = before.reserved - tokens if before.reserved else 0
        rows[:, _TOKENS] = tokens + before.token_states
        free = before.free - blocks_taken.cumsum() * self._block_size
        rows[:, _FREE] = free
        rows[:, _CACHED] = np.minimum(free, before.cached) if before.cached else 0
        rows[:, _SAVED:] = (
            before.saved_by_sharing - copies * self._block_size,
            running,
            waiting,
            running,
            REASONS.index(reason),
        )
        rows[0, _GAPS] -= late
        self._added(count)

    def flush(self) -> None:
        """Work off what has been handed in since the last time."""
        count, self._count = self._count, 0
        if not count:
            return
        seconds, states = self._seconds[:count], self._states[:count]
        held = self._num_slots - states[:, _FREE]
        measures = np.empty((count, 9), np.int64)
        measures[:, :2] = states[:, :2]
        measures[:, 2] = held - states[:, _TOKENS] - states[:, _RESERVED]
        measures[:, 3:8] = states[:, _FREE : _WAITING + 1]
        measures[:, 8] = (held + states[:, _SAVED]) // self._block_size
        self._timeline.add(self._starts[:count], seconds, measures, states[:, _REASON])
        self._itl.add_all(seconds, states[:, _GAPS])
        self.peak_blocks = max(self.peak_blocks, int(held.max()) // self._block_size)
        self.peak_running = max(self.peak_running, int(states[:, _RUNNING].max()))
        self.peak_waiting = max(self.peak_waiting, int(states[:, _WAITING].max()))

    def _added(self, count: int) -> None:
        self._count += count
        self.num_steps += count
        if self._count == _CAPACITY:
            self.flush()


_ORDINALS: NDArray[np.int64] = np.arange(1, _CAPACITY + 1)
