"""A decode step of the default model beside reading its bytes once and its arithmetic at the best rate; by phase.

    python benchmarks/bench_step.py [--dtype float32] [--quantization none] [--kv-cache-dtype auto] [--batch 1 64]
                                    [--context 512] [--rounds 15] [--percentile 50] [--threads N] [--json]

A step is the model's forward pass, logits and greedy tokens for a batch of sequences in shuffled blocks. Beside it:
reading as many bytes as the weights and the batch's keys and values have, by a sum over them, and the multiplications
at the rate of torch's best product here. The three take turns. Phases are those of the native call; `python`
is what the step takes around it, `engine` what an engine's step takes beyond the native calls. On a machine with other
work, a low --percentile shows what they take when left alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from looseleaf import SamplingParams
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.engine import Engine
from looseleaf.engine.llm import load_engine
from looseleaf.engine.prompts import TokenPrompt
from looseleaf.kernels.interface import AttentionBatch
from looseleaf.kernels.machine import tensor_read_bandwidth
from looseleaf.kernels.pool_memory import allocate_pool
from looseleaf.kernels.sampling import most_likely
from looseleaf.models.config import ModelConfig
from looseleaf.models.native_decoder import NativeCausalLM

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
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def best_product() -> float:
    """Operations per second of torch's products, 256 to 1,024 rows, float32 and bfloat16: the best."""
    best = 0.0
    for dtype in (torch.float32, torch.bfloat16):
        for size in (256, 768):
            a = torch.ones(size, size, dtype=dtype)
            product = partial(torch.mm, a, a)
            best = max(best, *(2e3 * size**3 / milliseconds(product) for _ in range(2)))
    return best


def engine_step(engine: Engine, batch: int, rounds: int, percentile: float) -> float:
    """Milliseconds of an engine's decode step beyond the native calls."""
    prompt = TokenPrompt([1, 2, 3], None)
    for _ in range(batch):
        engine.add_request(prompt, SamplingParams(temperature=0, max_tokens=rounds + 8, ignore_eos=True))
    for _ in range(4):
        engine.step()
    taken = []
    for _ in range(rounds):
        native_phases(engine)
        whole = milliseconds(engine.step)
        taken.append(whole - sum(native_phases(engine).values()))
    for request in list(engine._requests):
        engine.abort(request)
    return float(np.percentile(taken, percentile))


def native_phases(engine: Engine) -> dict[str, float]:
    assert isinstance(engine.model, NativeCausalLM)
    return {name: seconds * 1e3 for name, seconds in engine.model.take_phase_seconds().items()}


@torch.inference_mode()
def measure(engine: Engine, batch: int, context: int, rounds: int, percentile: float) -> Found:
    token_ids, positions, attention = decode_batch(engine, batch, context)
    cache_bytes = batch * context * engine.pool.bytes_per_token
    everything = allocate_pool((engine.model.nbytes + cache_bytes) // 64 * 64)

    def step() -> None:
        hidden = engine.model.forward(token_ids, positions, engine.kv_cache, attention)
        most_likely(engine.model.logits(hidden), np.arange(batch))

    step()
    native_phases(engine)
    steps, reads, rates, phases = [], [], [], []
    for _ in range(rounds):
        steps.append(milliseconds(step))
        phases.append(native_phases(engine))
        reads.append(everything.numel() / tensor_read_bandwidth(everything, seconds=0.01) * 1e3)
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
        float(np.percentile(np.subtract(steps, inside), percentile)),
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
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
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
