"""A decode step of the default model beside reading its bytes once and its arithmetic at the best rate; by phase.

    python benchmarks/bench_step.py [--dtype float32] [--quantization none] [--kv-cache-dtype auto] [--batch 1 64]
                                    [--context 512] [--rounds 15] [--percentile 50] [--threads N]
                                    [--cpu-time] [--json]

A step is the model's forward pass, logits and greedy tokens for a batch of sequences in shuffled blocks. Beside it:
reading as many bytes as the weights and the batch's keys and values have, by a sum over them, and the multiplications
at the rate of torch's best product here. The three take turns. Phases are those of the native call; `python`
is what the step takes around it, `engine` what an engine's step takes outside the model. On a machine with other
work, a low --percentile shows what they take when left alone;
--cpu-time counts the time of one thread alone (not in phases).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from looseleaf import SamplingParams
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.engine import Engine
from looseleaf.engine.llm import load_engine
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.kernels.interface import AttentionBatch
from looseleaf.kernels.pool_memory import allocate_pool
from looseleaf.kernels.sampling import most_likely
from looseleaf.models.config import ModelConfig
from looseleaf.models.interface import Decoder
from looseleaf.models.native_decoder import NativeCausalLM

clock = time.perf_counter

TARGETS = {1: 1.25, 64: 1.6}
"""Times the larger of reading and arithmetic that a step may take, by batch size."""


@dataclass
class Found:
    """Milliseconds."""

    batch: int
    step: float
    spread: float
    read: float
    arithmetic: float
    python: float
    engine: float
    phases: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.step / max(self.read, self.arithmetic)


def decode_batch(engine: Engine, batch: int, context: int) -> tuple[torch.Tensor, torch.Tensor, AttentionBatch]:
    """`batch` sequences of `context` tokens, their blocks in no order; one new token each."""
    size = engine.pool.block_size
    width = -(-context // size)
    generator = torch.Generator().manual_seed(0)
    tables = torch.randperm(batch * width, generator=generator).to(torch.int32).view(batch, width)
    slots = tables[:, (context - 1) // size].long() * size + (context - 1) % size
    lens = torch.full((batch,), context, dtype=torch.int32)
    starts = torch.arange(batch + 1, dtype=torch.int32)
    tokens = torch.randint(0, engine.vocab_size, (batch,), generator=generator)
    return tokens, torch.full((batch,), context - 1), AttentionBatch(tables, lens, starts, slots, batch)


def multiplications(shape: ModelConfig, batch: int, context: int) -> float:
    """Floating-point operations of a decode step: two for each weight, and for each number of keys and values."""
    heads = shape.num_heads + 2 * shape.num_kv_heads
    layer = shape.hidden_size * ((heads + shape.num_heads) * shape.head_dim + 3 * shape.intermediate_size)
    attention = 2 * shape.num_heads * shape.head_dim * context
    return 2.0 * batch * (shape.num_layers * (layer + attention) + shape.vocab_size * shape.hidden_size)


def milliseconds(work: Callable[[], object]) -> float:
    start = clock()
    work()
    return (clock() - start) * 1e3


def best_product() -> float:
    """Operations per second of torch's products, 256 to 1,024 rows, float32 and bfloat16: the best."""
    best = 0.0
    for dtype in (torch.float32, torch.bfloat16):
        for size in (256, 768):
            a = torch.ones(size, size, dtype=dtype)
            product = partial(torch.mm, a, a)
            best = max(best, *(2e3 * size**3 / milliseconds(product) for _ in range(2)))
    return best


class TimedModel:
    """A model that adds up the milliseconds spent in it."""

    def __init__(self, model: Decoder) -> None:
        self.model, self.config, self.dtype, self.nbytes = model, model.config, model.dtype, model.nbytes
        self.adapters, self.max_lora_rank, self.add_adapter = model.adapters, model.max_lora_rank, model.add_adapter
        self.milliseconds = 0.0

    def forward(self, *arguments: Any) -> torch.Tensor:
        return self._timed(self.model.forward, *arguments)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._timed(self.model.logits, hidden)

    def _timed(self, method: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
        start = clock()
        result = method(*arguments)
        self.milliseconds += (clock() - start) * 1e3
        return result


def engine_step(engine: Engine, batch: int, rounds: int, percentile: float) -> float:
    """Milliseconds of an engine's decode step outside the model, in an engine that shares the KV cache of `engine`."""
    timed = TimedModel(engine.model)
    engine = Engine(timed, engine.tokenizer, engine.config, engine.pool, kv_cache=engine.kv_cache)
    for _ in range(batch):
        params = SamplingParams(temperature=0, max_tokens=rounds + 8, ignore_eos=True)
        engine.add_request(TokenPrompt([1, 2, 3], None), params)
    for _ in range(4):
        engine.step()
    taken = []
    for _ in range(rounds):
        timed.milliseconds = 0.0
        taken.append(milliseconds(engine.step) - timed.milliseconds)
    while engine.has_unfinished():
        engine.step()
    return float(np.percentile(taken, percentile))


def native_phases(engine: Engine) -> dict[str, float]:
    assert isinstance(engine.model, NativeCausalLM)
    return {name: seconds * 1e3 for name, seconds in engine.model.take_phase_seconds().items()}


@torch.inference_mode()
def measure(engine: Engine, batch: int, context: int, rounds: int, percentile: float) -> Found:
    token_ids, positions, attention = decode_batch(engine, batch, context)
    cache_bytes = batch * context * engine.pool.bytes_per_token
    everything = allocate_pool((engine.model.nbytes + cache_bytes) // 64 * 64)
    words = everything.view(torch.float32)

    def step() -> None:
        hidden = engine.model.forward(token_ids, positions, engine.kv_cache, attention)
        most_likely(engine.model.logits(hidden), np.arange(batch))

    step()
    native_phases(engine)
    steps, reads, rates, phases = [], [], [], []
    for _ in range(rounds):
        steps.append(milliseconds(step))
        phases.append(native_phases(engine))
        reads.append(min(milliseconds(lambda: torch.ops.looseleaf.read_memory(everything)), milliseconds(words.sum)))
        rates.append(best_product())
    taken = float(np.percentile(steps, percentile))
    low, high = np.percentile(steps, [25, 75])
    by_phase = {name: float(np.percentile([each[name] for each in phases], percentile)) for name in phases[0]}
    inside = [sum(each.values()) for each in phases]
    return Found(
        batch,
        taken,
        float(high - low),
        float(np.percentile(reads, percentile)),
        multiplications(engine.model.config, batch, context) / float(np.percentile(rates, 100 - percentile)) * 1e3,
        float(np.percentile(np.subtract(steps, inside), percentile)) if clock is time.perf_counter else float("nan"),
        engine_step(engine, batch, rounds, percentile),
        by_phase,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--percentile", type=float, default=50)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.cpu_time:
        global clock
        clock = time.process_time
        options.threads = 1
    if options.threads:
        torch.set_num_threads(options.threads)
    config = EngineConfig(
        dtype=options.dtype,
        quantization=options.quantization,
        kv_cache_dtype=options.kv_cache_dtype,
        kv_cache_memory=int(max(options.batch) * (options.context + 16) * 46_080) + (1 << 24),
        max_num_seqs=max(options.batch),
        max_model_len=options.context,
    )
    engine = load_engine(config=config)
    if not isinstance(engine.model, NativeCausalLM):
        sys.exit("the native extension is missing: there is no native step to measure")
    for batch in options.batch:
        found = measure(engine, batch, options.context, options.rounds, options.percentile)
        if options.json:
            print(json.dumps(vars(found) | {"ratio": found.ratio}))
            continue
        target = f", target {TARGETS[batch]}" if batch in TARGETS else ""
        print(
            f"batch {batch}, context {options.context}: {found.step:.2f} ms (spread {found.spread:.2f}); reading "
            f"{found.read:.2f}, arithmetic {found.arithmetic:.2f}: ratio {found.ratio:.2f}{target}"
        )
        rest = {"python": found.python, "engine": found.engine}
        print("  " + ", ".join(f"{name} {taken:.2f}" for name, taken in (found.phases | rest).items()) + " ms")


if __name__ == "__main__":
    main()
