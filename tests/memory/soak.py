"""Random operations on every memory manager against the naive models, audited after each one.

python tests/memory/soak.py --operations 1000000 --seed 1
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from trial import OPERATIONS, Geometry, Trial

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


def soak(operations: int, seed: int, *, progress_every: float = float("inf")) -> SoakResult:
    """Pool after pool of random geometry, under each allocator in turn; raises at the first disagreement.

    The message names the pool, whose run can be repeated alone: it depends on `seed` and its number only.
    """
    result = SoakResult()
    next_report = time.monotonic() + progress_every
    while (done := result.operations.total()) < operations:
        allocator = ALLOCATORS[result.pools % len(ALLOCATORS)]
        choose = SeededChooser(f"{seed}/{result.pools}")
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
            error.add_note(f"In pool {result.pools} of seed {seed}: {allocator}, {geometry}.")
            raise
        result.failures += trial.failures
        result.pools += 1
        if time.monotonic() > next_report:
            print(f"{done:>9} operations, {result.pools} pools …", flush=True)
            next_report += progress_every
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    start = time.perf_counter()
    result = soak(arguments.operations, arguments.seed, progress_every=10.0)
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
