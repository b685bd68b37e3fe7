"""What the prefix cache costs on one core, and what it finds on real traces.

    python benchmarks/bench_prefix.py [--traces]

Lookup and registration in tokens per second (hashing and confirming included), admission of a prompt that is cached
as a whole, and eviction from full pools of 10 thousand to 1 million blocks. Medians of processor time, with the 10th
and 90th percentile. Exits with 1 when a median misses its limit. `--traces` adds hit rates, beside a naive cache's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from looseleaf.memory import BlockManager, Prefix

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

BLOCK_SIZE = 16
PROMPT = 8_192
POOLS = (10_000, 100_000, 1_000_000)
EVICTED = 512
"""Blocks per admission into a full pool."""
REPEATS = 60
LIMITS = {"register": 20.0, "lookup": 20.0, "admit": 300.0}
"""Million tokens per second, the same, microseconds."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", action="store_true", help="hit rates on the traces of LOOSELEAF_SHARED, too")
    arguments = parser.parse_args()
    ok = measure_prompts()
    measure_eviction()
    if arguments.traces:
        print_hit_rates()
    return 0 if ok else 1


def measure_prompts() -> bool:
    """Prompts of 8,192 tokens in blocks of 16: entered once, looked up, admitted again and again."""
    register, lookup, admit = [], [], []
    draw = np.random.default_rng(0)
    for _ in range(REPEATS):
        memory = BlockManager(4 * PROMPT // BLOCK_SIZE, BLOCK_SIZE, 4)
        tokens = draw.integers(0, 49_152, PROMPT, np.int32)
        seq = memory.admit_prefix(Prefix(tokens)).seq
        memory.step = 1
        register.append(PROMPT / seconds(partial(memory.register, seq, tokens, PROMPT)) / 1e6)
        memory.fill(np.array([seq]), PROMPT)
        memory.release(seq)
        memory.step = 2
        prefix = Prefix(tokens.copy())
        lookup.append(PROMPT / seconds(partial(memory.lookup, prefix)) / 1e6)
        prefix = Prefix(tokens.copy())
        admit.append(1e6 * seconds(partial(memory.admit_prefix, prefix)))
    print(f"Prompts of {PROMPT:,} tokens, blocks of {BLOCK_SIZE}")
    ok = show("registration, million tokens/s", register, least=LIMITS["register"])
    ok &= show("lookup, million tokens/s", lookup, least=LIMITS["lookup"])
    return show("admission when all is cached, µs", admit, most=LIMITS["admit"]) and ok


def measure_eviction() -> None:
    """Admissions into a pool full of cached blocks: each evicts as many as it takes."""
    print(f"\nAdmission of {EVICTED} blocks, all evicted from a full pool, µs per block")
    medians = {}
    for num_blocks in POOLS:
        memory = BlockManager(num_blocks, BLOCK_SIZE, 4, EVICTED)
        draw = np.random.default_rng(1)
        samples = []
        for turn in range(num_blocks // EVICTED + REPEATS):
            tokens = draw.integers(0, 49_152, EVICTED * BLOCK_SIZE, np.int32)
            memory.step += 1
            started = time.process_time()
            admission = memory.admit_prefix(Prefix(tokens))
            if turn > num_blocks // EVICTED:
                samples.append(1e6 * (time.process_time() - started) / EVICTED)
            seq = admission.seq
            memory.register(seq, tokens, len(tokens))
            memory.fill(np.array([seq]), len(tokens) - admission.num_cached)
            memory.release(seq)
        medians[num_blocks] = float(np.median(samples))
        ratio = medians[num_blocks] / medians[POOLS[0]]
        show(f"{num_blocks:>9,} blocks (× {ratio:.2f})", samples)


def print_hit_rates() -> None:
    from prefix_traces import KNOWN, UNBOUNDED, hit_rate, naive_hit_rate

    print("\nShare of prompt tokens found (full blocks, never the last token, whole trace): ours, naive, published")
    for trace in KNOWN:
        print(f"{trace.file}, blocks of {trace.block_size}")
        for capacity, known in trace.known.items():
            blocks = "unbounded" if capacity == UNBOUNDED else f"{capacity:,} blocks"
            ours, naive = hit_rate(trace, capacity), naive_hit_rate(trace, capacity)
            print(f"  {blocks:>15}  {ours:7.2%}  {naive:7.2%}  {known:5.1f} %")


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def show(what: str, samples: list[float], *, least: float | None = None, most: float | None = None) -> bool:
    low, median, high = np.percentile(samples, [10, 50, 90])
    ok = (least is None or median >= least) and (most is None or median <= most)
    limit = f"  limit {least or most:g}: {'kept' if ok else 'MISSED'}" if least or most else ""
    print(f"  {what:<36} {median:8.2f}  ({low:.2f} to {high:.2f}){limit}")
    return ok


if __name__ == "__main__":
    sys.exit(main())
