"""Replays a trace: the scheduler and the memory manager that serve, driven by a clock instead of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from looseleaf.errors import RequestTooLarge
from looseleaf.memory import make_manager
from looseleaf.memory.manager import BlockManager
from looseleaf.replay.config import ReplayConfig
from looseleaf.replay.cost import StepCost
from looseleaf.replay.errors import ReplayStuck
from looseleaf.replay.live_requests import LiveRequests
from looseleaf.replay.request_log import RequestLog
from looseleaf.replay.result import ReplayResult, Totals, summed
from looseleaf.replay.step_recorder import StepRecorder
from looseleaf.replay.timeline import Timeline
from looseleaf.scheduler import Scheduler, StepPlan

if TYPE_CHECKING:
    from looseleaf.replay.trace import TraceRequest


class Traffic(Protocol):
    """What is replayed: a `Trace`, or anything that gives requests in order of arrival."""

    name: str

    def requests(self) -> Iterator[TraceRequest]: ...


Progress = Callable[[int, float], None]
"""Told, now and then, how many requests have ended and what time it is."""

_REQUESTS_PER_REPORT = 256
_MOST_STEPS = 1024
"""That are taken at once; bounds the arrays of a run."""


def replay(
    trace: Traffic,
    config: ReplayConfig,
    cost: StepCost,
    *,
    progress: Progress | None = None,
    keep_requests: bool = True,
    single_steps: bool = False,
) -> ReplayResult:
    """Serve all requests of `trace` and say what happened.

    `keep_requests`: one row for each; without it memory stays flat however many there are. `single_steps`: plan every
    step, also where several would go the same way; the result is the same, to the bit.
    Raises `RequestTooLarge` for what could never run, if the configuration says so.
    """
    return _Replay(trace, config, cost, progress, keep_requests, single_steps).run()


class _Replay:
    def __init__(
        self,
        trace: Traffic,
        config: ReplayConfig,
        cost: StepCost,
        progress: Progress | None,
        keep_requests: bool,
        single_steps: bool,
    ) -> None:
        self._trace = trace
        self._config = config
        self._cost = cost
        self._progress = progress
        self._single_steps = single_steps
        limits = config.scheduler
        longest = -(-limits.max_model_len // config.block_size)
        self._memory = make_manager(
            config.allocator,
            config.num_blocks,
            config.block_size,
            limits.max_num_seqs,
            min(longest, config.num_blocks),
            max_model_len=min(limits.max_model_len, config.num_blocks * config.block_size),
        )
        self._scheduler = Scheduler(limits, self._memory)
        self._log = RequestLog(keep=keep_requests)
        self._timeline = Timeline(config.timeline_rows)
        self._recorder = StepRecorder(
            config.num_blocks * config.block_size, config.block_size, self._timeline, self._log.histograms["itl"]
        )
        self._totals = Totals()
        self._live = LiveRequests(
            self._memory,
            self._log,
            shares=config.shares_prefixes,
            takes_turns=limits.max_num_seqs > limits.max_num_batched_tokens,
        )
        self._now = self._last_end = 0.0
        self._num_added = 0

    def run(self) -> ReplayResult:
        arrivals = iter(self._trace.requests())
        coming = next(arrivals, None)
        reported = 0
        while coming is not None or self._scheduler.has_unfinished():
            if coming is not None and not self._scheduler.has_unfinished():
                self._now = max(self._now, coming.arrival)
            while coming is not None and coming.arrival <= self._now:
                self._add(coming)
                coming = next(arrivals, None)
            if self._scheduler.has_unfinished() and not self._run_ahead(None if coming is None else coming.arrival):
                self._step()
            if self._progress is not None and self._log.num_finished >= reported + _REQUESTS_PER_REPORT:
                reported = self._log.num_finished
                self._progress(reported, self._now)
        return self._result()

    def _add(self, request: TraceRequest) -> None:
        scope = request.tenant if self._config.isolate_tenants else ""
        self._num_added += 1
        try:
            self._live.add(request, self._scheduler, number=self._num_added, scope=scope)
        except RequestTooLarge:
            if self._config.too_large == "fatal":
                raise
            self._totals.refused += 1

    def _step(self) -> None:
        scheduler = self._scheduler
        plan = scheduler.schedule(self._now)
        self._live.preempted(plan.preempted, self._now)
        self._totals.copies += len(plan.copies.source)
        if not plan:
            if not plan.preempted:
                raise ReplayStuck(
                    f"{scheduler.num_waiting} sequences wait at {self._now:.3f} s and none can be admitted to an empty "
                    "pool.",
                    hint="This is a fault of the scheduler: please report it with the trace and the settings.",
                )
            return
        self._live.admitted(plan.admitted, self._now)
        num_tokens = plan.num_tokens
        seconds = self._seconds(plan, num_tokens)
        start, self._now = self._now, self._now + seconds
        late = self._live.sampled(plan, start, self._now)
        self._recorder.add(
            start,
            seconds,
            self._memory.usage(),
            new_tokens=num_tokens,
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            reason=scheduler.waiting_reason or "arrivals",
            gaps=plan.num_decodes - late,
        )
        due = scheduler.due(plan)
        self._live.ending(due)
        scheduler.commit(plan, due, self._now)
        self._live.decoded(plan)
        self._live.ended(due, self._now)
        self._last_end = self._now

    def _run_ahead(self, until: float | None) -> bool:
        """Steps that only decode, all up to the next event, in one go; False if the next step is not of that kind."""
        scheduler, totals = self._scheduler, self._totals
        outlook = None if self._single_steps else scheduler.outlook(min(_MOST_STEPS, self._recorder.room))
        if outlook is None or outlook.num_steps == 1:
            return False
        num_seqs = outlook.num_seqs
        seconds = self._cost.decode_seconds(
            num_seqs=num_seqs, context_tokens=outlook.context_tokens, num_steps=outlook.num_steps
        )
        times = np.empty(len(seconds) + 1)
        times[0] = self._now
        times[1:] = seconds
        np.add.accumulate(times, out=times)  # one after the other, as single steps would
        count = len(seconds)
        if until is not None and times[-2] >= until:  # a step that has begun is not cut short
            count = int(times.searchsorted(until))
            seconds = seconds[:count]
        before = self._memory.usage()
        run = scheduler.schedule_run(count)
        self._now = float(times[count])
        self._recorder.add_run(
            times[:count],
            seconds,
            before,
            blocks_taken=run.blocks_taken,
            copies=len(run.copies.source),
            running=num_seqs,
            waiting=scheduler.num_waiting,
            reason=scheduler.waiting_reason or "arrivals",
            late=self._live.gaps(run.sequences, float(times[0]), float(times[1]), self._now),
        )
        totals.computed_tokens += count * num_seqs
        totals.copies += len(run.copies.source)
        due = scheduler.due_in_run(run)
        self._live.ending(due, count - 1)
        scheduler.commit_run(run, due)
        self._live.decoded_run(run)
        self._live.ended(due, self._now)
        self._last_end = self._now
        return True

    def _seconds(self, plan: StepPlan, num_tokens: int) -> float:
        self._totals.computed_tokens += num_tokens
        count = plan.num_decodes
        context_tokens = int(np.add.reduce(plan.num_computed, dtype=np.int64)) + num_tokens
        num_sampled, pairs = count, context_tokens
        if count < len(plan.sequences):
            columns = (plan.num_computed, plan.num_scheduled, plan.num_samples)
            chunks = zip(*(column[count:].tolist() for column in columns), strict=True)
            for computed, scheduled, samples in chunks:
                num_sampled += samples
                # Query i of a chunk looks at all before the chunk and at i + 1 of its own.
                pairs += (scheduled - 1) * computed + scheduled * (scheduled - 1) // 2
        return self._cost.seconds(
            num_tokens=num_tokens,
            num_seqs=len(plan.sequences),
            num_sampled=num_sampled,
            context_tokens=context_tokens,
            attention_pairs=pairs,
        )

    def _result(self) -> ReplayResult:
        totals, scheduler, recorder = self._totals, self._scheduler, self._recorder
        recorder.flush()
        totals.steps = recorder.num_steps
        totals.peak_blocks, totals.peak_running = recorder.peak_blocks, recorder.peak_running
        totals.peak_waiting = recorder.peak_waiting
        totals.requests = self._log.num_finished
        totals.makespan = self._last_end
        for tenant in self._log.tenants.values():
            totals.prompt_tokens += tenant.prompt_tokens
            totals.output_tokens += tenant.output_tokens
            totals.cached_prompt_tokens += tenant.cached_tokens
        totals.preemptions = scheduler.num_preemptions
        totals.preempted_tokens = scheduler.num_preempted_tokens
        totals.recomputed_tokens = scheduler.num_recomputed_tokens
        if isinstance(self._memory, BlockManager):
            counts = self._memory.cache_counts()
            totals.prefix_query_tokens, totals.prefix_hit_tokens = counts.query_tokens, counts.hit_tokens
            totals.evictions = counts.evictions
        summed(self._timeline, totals, self._config.num_blocks * self._config.block_size)
        settings = {"trace": self._trace.name, "config": self._config.describe(), "cost": self._cost.describe()}
        return ReplayResult(settings, totals, self._log, self._timeline)
