"""Random operations on every memory manager against the naive models, audited after each one.

python tests/memory/soak.py --operations 1000000 --seed 1
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from trial import OPERATIONS, Geometry, Trial, pick

from looseleaf.memory import ALLOCATORS

OPERATIONS_PER_POOL = 500


class SeededChooser:
    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random

    def integer(self, low: int, high: int) -> int:
        return low + int(self._random() * (high - low + 1))


@dataclass
class SoakResult:
    operations: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    pools: int = 0


def soak(
    operations: int, seed: int, *, first_pool: int = 0, stride: int = 1, progress_every: float = float("inf")
) -> SoakResult:
    """Pool after pool of random geometry, under an allocator drawn for it; raises at the first disagreement.

    The message names the pool, whose run depends on `seed` and its number only. Processes share the work by
    taking every `stride`-th pool.
    """
    result = SoakResult()
    next_report = time.monotonic() + progress_every
    number = first_pool
    while (done := result.operations.total()) < operations:
        choose = SeededChooser(f"{seed}/{number}")
        allocator = pick(choose, ALLOCATORS)
        geometry = Geometry.choose(choose)
        trial = Trial(allocator, geometry)
        try:
            for _ in range(min(OPERATIONS_PER_POOL, operations - done)):
                operation = OPERATIONS[choose.integer(0, len(OPERATIONS) - 1)]
                operation(trial, choose)
                trial.check()
                result.operations[operation.__name__] += 1
            trial.drain()
        except BaseException as error:
            error.add_note(f"In pool {number} of seed {seed}: {allocator}, {geometry}.")
            raise
        result.failures += trial.failures
        result.pools += 1
        number += stride
        if time.monotonic() > next_report:
            print(f"{done:>9} of {operations} operations in each of {stride} processes …", flush=True)
            next_report += progress_every
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    processes = arguments.processes
    start = time.perf_counter()
    result = SoakResult()
    with ProcessPoolExecutor(processes) as executor:
        shares = [
            executor.submit(
                soak,
                arguments.operations // processes + (share < arguments.operations % processes),
                arguments.seed,
                first_pool=share,
                stride=processes,
                progress_every=float("inf") if share else 10.0,
            )
            for share in range(processes)
        ]
        for finished in as_completed(shares):
            part = finished.result()
            result.operations += part.operations
            result.failures += part.failures
            result.pools += part.pools
    seconds = time.perf_counter() - start
    done = result.operations.total()
    print(
        f"{done} operations on {result.pools} pools in {seconds:.1f} s ({done / seconds:.0f}/s), seed {arguments.seed}."
    )
    print("  done:   ", ", ".join(f"{name} {count}" for name, count in result.operations.most_common()))
    print("  refused:", ", ".join(f"{name} {count}" for name, count in result.failures.most_common()))
    print("Every operation agreed with the naive model, and every audit was clean.")


if __name__ == "__main__":
    main()
