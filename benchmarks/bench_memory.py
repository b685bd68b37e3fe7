"""What the paged memory manager costs per decode step, admission and release, from small pools to huge ones.

    python benchmarks/bench_memory.py [--json]

One sample is the mean processor time over a batch of calls. The table shows the median sample, the 10th and 90th
percentile, the ratio to the smallest pool, and where there is one, to the limit. Pool sizes take turns: a noisy moment
of the machine hits them all. Exits with 1 when a median exceeds its limit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from looseleaf.memory import BlockManager, SequenceId

BLOCK_SIZE = 16
NUM_RUNNING = 256
DECODE_STEPS = 2 * BLOCK_SIZE
"""Every sequence crosses two block boundaries, and in each step as many sequences as in any other."""
ADMITTED_BLOCKS = 64
ADMISSIONS = 8
BLOCKS_PER_SEQ = 4_096
POOLS = (1_000, 10_000, 100_000, 1_000_000)

LIMITS = {"decode": 0.5, "admit": 15.0}
"""Microseconds: decode per sequence and step, admission of 64 blocks."""
ELSEWHERE = {"decode": 5.5, "admit": 12.0}
"""vLLM 0.32's Python block manager, measured elsewhere, on a comparable machine; never by this script."""

UNITS = {
    "decode": "µs per sequence and step (append)",
    "decode + fill": "µs per sequence and step (append, fill)",
    "decode, 1000 tokens": "µs per sequence and step (append), contexts of 1,000 tokens",
    "decode, forks": "µs per sequence and step (append), contexts of 1,000 tokens, each prompt shared by 4 sequences,"
    " first writes included, which copy",
    "admit": f"µs per admission of {ADMITTED_BLOCKS} blocks",
    "release": f"µs per release of {ADMITTED_BLOCKS} blocks",
    "construct": "µs for building a pool",
}


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    num_blocks: int
    median: float
    low: float
    high: float
    ratio: float
    """Median relative to that of the smallest pool."""

    @property
    def of_limit(self) -> float | None:
        """Median relative to the limit."""
        return self.median / LIMITS[self.what] if self.what in LIMITS else None

    @property
    def peer_over_median(self) -> float | None:
        """How many times the peer's figure, measured elsewhere, is the median."""
        return ELSEWHERE[self.what] / self.median if self.what in ELSEWHERE else None


def scattered_pool(num_blocks: int) -> BlockManager:
    """A pool whose free blocks lie far apart from one another in memory, as after long use."""
    memory = BlockManager(num_blocks, BLOCK_SIZE, NUM_RUNNING, BLOCKS_PER_SEQ)
    seqs = np.array([memory.admit(1) for _ in range(NUM_RUNNING)])
    for _ in range(num_blocks // NUM_RUNNING - 1):
        memory.append(seqs, BLOCK_SIZE)
    for seq in np.random.default_rng(0).permutation(seqs):
        memory.release(int(seq))
    return memory


def microseconds(calls: Callable[[], object]) -> float:
    """Processor time, so that other work on the machine does not count."""
    start = time.thread_time_ns()
    calls()
    return (time.thread_time_ns() - start) / 1_000


def decode_samples(memory: BlockManager, context: int, *, fill: bool = False, sharers: int = 1) -> Iterator[float]:
    def decode() -> None:
        for _ in range(DECODE_STEPS):
            memory.append(running)
            if fill:
                memory.fill(running, 1)

    while True:
        ids: list[SequenceId] = []
        for index in range(NUM_RUNNING):
            length = context - index // sharers % BLOCK_SIZE
            ids.append(memory.fork(ids[-1])[0] if index % sharers else memory.admit(length, filled=length))
        running = np.array(ids)
        sample = microseconds(decode) / DECODE_STEPS / NUM_RUNNING
        for seq in ids:
            memory.release(seq)
        yield sample


def admission_samples(memory: BlockManager) -> Iterator[tuple[float, float]]:
    """(admit, release) per call."""
    admitted: list[SequenceId] = []
    tokens = ADMITTED_BLOCKS * BLOCK_SIZE

    def admit() -> None:
        admitted.extend(memory.admit(tokens, request_id="request") for _ in range(ADMISSIONS))

    def release() -> None:
        while admitted:
            memory.release(admitted.pop(0))

    while True:
        yield microseconds(admit) / ADMISSIONS, microseconds(release) / ADMISSIONS


def measure(samples: int) -> list[Figure]:
    found: dict[tuple[str, int], list[float]] = {}
    memories = {num_blocks: scattered_pool(num_blocks) for num_blocks in POOLS}

    def rounds(sources: dict[tuple[str, int], Iterator[float]]) -> None:
        for warming_up in (True, False):
            for _ in range(3 if warming_up else samples):
                for key, source in sources.items():
                    sample = next(source)
                    if not warming_up:
                        found.setdefault(key, []).append(sample)

    scenarios: dict[str, tuple[int, dict[str, Any]]] = {
        "decode": (BLOCK_SIZE, {}),
        "decode + fill": (BLOCK_SIZE, {"fill": True}),
        "decode, 1000 tokens": (1_000, {}),
        "decode, forks": (1_000, {"sharers": 4}),
    }
    for what, (context, options) in scenarios.items():
        sharers = options.get("sharers", 1)
        prompts = NUM_RUNNING // sharers * -(-context // BLOCK_SIZE)
        copies = NUM_RUNNING if sharers > 1 else 0
        blocks = prompts + copies + NUM_RUNNING * DECODE_STEPS // BLOCK_SIZE
        sources = {
            (what, num_blocks): decode_samples(memory, context, **options)
            for num_blocks, memory in memories.items()
            if blocks <= num_blocks
        }
        rounds(sources)
    for _ in range(samples):
        for num_blocks, memory in memories.items():
            admit, release = next(admission_samples(memory))
            found.setdefault(("admit", num_blocks), []).append(admit)
            found.setdefault(("release", num_blocks), []).append(release)
    for _ in range(5):
        for num_blocks in POOLS:
            sample = microseconds(lambda n=num_blocks: BlockManager(n, BLOCK_SIZE, NUM_RUNNING, BLOCKS_PER_SEQ))  # type: ignore[misc]  # a default in a lambda
            found.setdefault(("construct", num_blocks), []).append(sample)
    return summarise(found)


def summarise(found: dict[tuple[str, int], list[float]]) -> list[Figure]:
    base: dict[str, float] = {}
    figures = []
    for (what, num_blocks), values in sorted(
        found.items(), key=lambda item: (list(UNITS).index(item[0][0]), item[0][1])
    ):
        low, median, high = (float(value) for value in np.percentile(values, [10, 50, 90]))
        base.setdefault(what, median)
        figures.append(Figure(what, num_blocks, median, low, high, median / base[what]))
    return figures


def print_table(figures: list[Figure]) -> None:
    shown = ""
    for figure in figures:
        if figure.what != shown:
            shown = figure.what
            limit = f"; at most {LIMITS[shown]:g}" if shown in LIMITS else ""
            peer = f"; vLLM 0.32, measured elsewhere: about {ELSEWHERE[shown]:g}" if shown in ELSEWHERE else ""
            print(f"\n{UNITS[shown]}{limit}{peer}")
            ratios = (f" {'÷ limit':>8}" if limit else "") + (f" {'vLLM ÷':>8}" if peer else "")
            print(f"{'blocks':>11} {'median':>9} {'p10':>9} {'p90':>9} {'ratio':>7}{ratios}")
        ratios = "".join(f" {x:>7.2f}x" for x in (figure.of_limit, figure.peer_over_median) if x is not None)
        print(
            f"{figure.num_blocks:>11,} {figure.median:>9.3f} {figure.low:>9.3f} {figure.high:>9.3f}"
            f" {figure.ratio:>6.2f}x{ratios}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    arguments = parser.parse_args()
    figures = measure(arguments.samples)
    if arguments.json:
        print(
            json.dumps(
                {
                    "block_size": BLOCK_SIZE,
                    "running_sequences": NUM_RUNNING,
                    "limits_us": LIMITS,
                    "vllm_0_32_measured_elsewhere_us": ELSEWHERE,
                    "figures": [
                        asdict(figure)
                        | {
                            "unit": UNITS[figure.what],
                            "of_limit": figure.of_limit,
                            "vllm_over_median": figure.peer_over_median,
                        }
                        for figure in figures
                    ],
                },
                ensure_ascii=False,
            )
        )
    else:
        print_table(figures)
    if exceeded := [figure for figure in figures if (figure.of_limit or 0) > 1]:
        sys.exit("\n".join(f"{f.what}, {f.num_blocks:,} blocks: {f.median:.3f} µs exceed the limit" for f in exceeded))


if __name__ == "__main__":
    main()
