"""Running many requests to their end, and measuring what it took: time, sequences at once, use of the pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from looseleaf.engine.engine import Engine
from looseleaf.engine.generation_request import GenerationRequest
from looseleaf.engine.outputs import RequestOutput
from looseleaf.engine.prompts import InvalidPrompt, Prompt, TokenPrompt
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.memory.interface import SlotUsage
from looseleaf.scheduler.interface import StepPlan

WorkloadRequest = GenerationRequest | tuple[Prompt | TokenPrompt, SamplingParams]


@dataclass(frozen=True, slots=True)
class PoolUse:
    """How full the pool was while steps ran. Means are over time; a step counts as it leaves the pool, tokens
    that it computes included, before finished sequences give their blocks back."""

    num_blocks: int
    peak_blocks: int
    mean_sequences: float
    peak_sequences: int
    """Sequences that held blocks at once."""
    held_slots_with_tokens: float
    """Mean share, of the slots that sequences hold, that hold a token; what is missing to 1 is waste."""
    pool_slots_with_tokens: float
    """Mean share, of all slots of the pool, that hold a token."""
    peak_saved_slots: int
    """Most slots that sharing saved at one time."""


@dataclass(frozen=True, slots=True)
class WorkloadRun:
    """What came of one workload. Seconds are wall time, without the time that measuring took."""

    outputs: list[RequestOutput]
    """In the order of the requests."""
    seconds: float
    steps: int
    preemptions: int
    prompt_tokens: int
    output_tokens: int
    """All that were sampled, those of samples that `best_of` rejected too."""
    pool: PoolUse
    cached_prompt_tokens: int
    """Of the prompt tokens, those whose keys and values the prefix cache had."""

    @property
    def output_tokens_per_second(self) -> float:
        return self.output_tokens / self.seconds

    @property
    def first_token_seconds(self) -> list[float]:
        """From the arrival of each request to its first token; a request that failed before has none."""
        metrics = (output.metrics for output in self.outputs)
        return [m.first_token_time - m.arrival_time for m in metrics if m and m.first_token_time is not None]

    @property
    def median_first_token_seconds(self) -> float | None:
        return median(self.first_token_seconds) if self.first_token_seconds else None

    @property
    def prompt_tokens_per_second(self) -> float | None:
        """Up to the last request's first token; the decoding of others in between is not deducted."""
        return self.prompt_tokens / max(self.first_token_seconds) if self.first_token_seconds else None

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Median over the requests of their longest sample's tokens after the first; None where there are none."""
        rates = []
        for output in self.outputs:
            times, later = output.metrics, max(len(sample.token_ids) for sample in output.outputs) - 1
            if later > 0 and times and times.first_token_time is not None and times.finished_time is not None:
                rates.append(later / (times.finished_time - times.first_token_time))
        return median(rates) if rates else None


class PoolMeter:
    """Observes an engine's plans; `add_time` weighs the one observed last with how long its step took."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.steps = 0
        self.preemptions = 0
        self.own_seconds = 0.0
        """Time spent measuring."""
        self._latest = (0, 0.0, 0.0)
        self._seconds = 0.0
        self._sums = [0.0, 0.0, 0.0]
        self._peak_blocks = self._peak_sequences = self._peak_saved = 0

    def observe(self, plan: StepPlan) -> None:
        started = time.perf_counter()
        memory = self._engine.memory
        sequences = self._engine.scheduler.num_running
        usage: SlotUsage = memory.usage()
        tokens = usage.token_states + plan.num_tokens  # each scheduled token has a slot of its own
        self._latest = (sequences, tokens / (usage.total - usage.free), tokens / usage.total)
        self._peak_sequences = max(self._peak_sequences, sequences)
        self._peak_blocks = max(self._peak_blocks, memory.num_blocks - memory.num_free_blocks)
        self._peak_saved = max(self._peak_saved, usage.saved_by_sharing)
        self.steps += 1
        self.preemptions += len(plan.preempted)
        self.own_seconds += time.perf_counter() - started

    def add_time(self, seconds: float) -> None:
        self._seconds += seconds
        self._sums = [total + seconds * value for total, value in zip(self._sums, self._latest, strict=True)]

    def result(self) -> PoolUse:
        sequences, of_held, of_pool = (total / self._seconds for total in self._sums)
        return PoolUse(
            num_blocks=self._engine.memory.num_blocks,
            peak_blocks=self._peak_blocks,
            mean_sequences=sequences,
            peak_sequences=self._peak_sequences,
            held_slots_with_tokens=of_held,
            pool_slots_with_tokens=of_pool,
            peak_saved_slots=self._peak_saved,
        )


def run_workload(
    engine: Engine,
    requests: Sequence[WorkloadRequest],
    *,
    on_finished: Callable[[int, RequestOutput], None] = lambda _index, _output: None,
) -> WorkloadRun:
    """Run all requests at once to their end in an engine that is otherwise idle.

    Every request is checked before the first runs, so a typed error (`InvalidPrompt`, `RequestTooLarge`, …) means
    that nothing was computed. If it is interrupted, what runs is aborted. `on_finished` is told each result, and
    which of `requests` it answers, as it comes.
    """
    read = engine.read_requests(requests)
    if not read:
        raise InvalidPrompt("The workload has no requests.", hint="Give at least one.")
    meter = PoolMeter(engine)
    results: dict[int, RequestOutput] = {}
    index_of: dict[str, int] = {}
    output_tokens = 0
    engine.on_plan = meter.observe
    started = time.perf_counter()
    try:
        for index, (prompt, params, adapter) in enumerate(read):
            index_of[engine.add_request(prompt, params, adapter=adapter)] = index
        while len(results) < len(read):
            step_started, measuring = time.perf_counter(), meter.own_seconds
            deltas = engine.step()
            meter.add_time(time.perf_counter() - step_started - (meter.own_seconds - measuring))
            for delta in deltas:
                if delta.request_id not in index_of:
                    continue  # the end of what an earlier, interrupted run had in flight
                output_tokens += len(delta.token_ids)
                if delta.request_output is not None:
                    index = index_of[delta.request_id]
                    results[index] = delta.request_output
                    on_finished(index, delta.request_output)
        seconds = time.perf_counter() - started - meter.own_seconds
    finally:
        engine.on_plan = None
        for request_id in index_of:
            engine.abort(request_id)
    return WorkloadRun(
        outputs=[results[index] for index in range(len(read))],
        seconds=seconds,
        steps=meter.steps,
        preemptions=meter.preemptions,
        prompt_tokens=sum(len(each.prompt.token_ids) for each in read),
        output_tokens=output_tokens,
        pool=meter.result(),
        cached_prompt_tokens=sum(output.num_cached_tokens for output in results.values()),
    )
