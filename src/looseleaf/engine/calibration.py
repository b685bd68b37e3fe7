"""What a step of this engine takes on this machine, measured over batch sizes, contexts and prefill chunks."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from looseleaf.engine.engine import Engine
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.scheduler.interface import StepPlan


class StepSample(NamedTuple):
    """What one step computed, and how long it took."""

    num_tokens: int
    num_seqs: int
    num_sampled: int
    context_tokens: int
    """Keys read, summed over the sequences."""
    attention_pairs: int
    """Keys looked at, summed over the queries."""
    seconds: float


class Batch(NamedTuple):
    """Sequences that are prefilled together and then decode together."""

    num_seqs: int
    prompt_len: int


BATCHES = (
    Batch(1, 16),
    Batch(4, 16),
    Batch(16, 16),
    Batch(64, 16),
    Batch(1, 512),
    Batch(16, 256),
    Batch(64, 64),
    Batch(32, 256),
    Batch(8, 1024),
    Batch(64, 256),
)
"""The first ones are measured in any case, the others as far as the time allows."""
_FIRST = 6
DECODE_STEPS = 8
_WARMUP = Batch(8, 32)


def measure_steps(engine: Engine, *, most_seconds: float = 25.0, rounds: int = 2) -> list[StepSample]:
    """Run batches through an idle engine, in `rounds`, as far as the time allows.

    Decode steps of one batch are one sample, with the median of their times. The prefix cache is emptied before each
    batch.
    """
    rng = random.Random(engine.config.seed)
    started = time.perf_counter()
    samples: list[StepSample] = []
    list(_steps(engine, _WARMUP, rng))
    for number, batch in enumerate(_possible(engine) * rounds):
        left = most_seconds - (time.perf_counter() - started)
        if number >= _FIRST and left < batch.num_seqs * batch.prompt_len * _seconds_per_token(samples):
            continue
        engine.reset_prefix_cache()
        steps = list(_steps(engine, batch, rng))
        samples += [step for step in steps if step.num_tokens > step.num_seqs]
        decodes = [step for step in steps if step.num_tokens == step.num_seqs == batch.num_seqs]
        if decodes:
            middle = decodes[len(decodes) // 2]
            samples.append(middle._replace(seconds=median(step.seconds for step in decodes)))
    return samples


def _seconds_per_token(samples: list[StepSample]) -> float:
    largest = max(samples, key=lambda step: step.num_tokens)
    return largest.seconds / largest.num_tokens


def _possible(engine: Engine) -> list[Batch]:
    """The batches as far as seats, lengths and the pool allow."""
    config, pool = engine.config, engine.pool
    batches = []
    for num_seqs, prompt_len in BATCHES:
        prompt_len = min(prompt_len, engine.scheduler.largest_request - DECODE_STEPS - 1)
        if prompt_len < 1:
            continue
        blocks = -(-(prompt_len + DECODE_STEPS) // pool.block_size) + 1
        batches.append(Batch(min(num_seqs, config.max_num_seqs, max(1, pool.num_blocks // blocks)), prompt_len))
    return list(dict.fromkeys(batches))


def _steps(engine: Engine, batch: Batch, rng: random.Random) -> Iterator[StepSample]:
    """Prefill and decode a batch, step by step."""
    params = SamplingParams(max_tokens=DECODE_STEPS + 1, temperature=0.0, ignore_eos=True, detokenize=False)
    observed: list[StepPlan] = []
    engine.on_plan = observed.append
    requests = []
    try:
        for _ in range(batch.num_seqs):
            tokens = [rng.randrange(engine.vocab_size) for _ in range(batch.prompt_len)]
            requests.append(engine.add_request(TokenPrompt(tokens, None), params))
        while engine.has_unfinished():
            started = time.perf_counter()
            engine.step()
            seconds = time.perf_counter() - started
            if observed:
                yield _sample(observed.pop(), seconds)
    finally:
        engine.on_plan = None
        for request_id in requests:
            engine.abort(request_id)


def _sample(plan: StepPlan, seconds: float) -> StepSample:
    computed, scheduled = plan.num_computed.tolist(), plan.num_scheduled.tolist()
    pairs = sum(n * c + n * (n + 1) // 2 for c, n in zip(computed, scheduled, strict=True))
    return StepSample(
        num_tokens=sum(scheduled),
        num_seqs=len(scheduled),
        num_sampled=int(plan.num_samples.sum()),
        context_tokens=sum(computed) + sum(scheduled),
        attention_pairs=pairs,
        seconds=seconds,
    )
