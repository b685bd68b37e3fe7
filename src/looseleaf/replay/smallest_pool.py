"""The smallest pool with which a trace meets a latency target, found by replaying it, and the cliff below it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from looseleaf.errors import ConfigurationError, LooseleafError
from looseleaf.replay.cost import StepCost
from looseleaf.replay.goodput import Slo
from looseleaf.replay.matrix import Cell, run_matrix, usable_cores
from looseleaf.replay.settings import Settings
from looseleaf.replay.sources import TraceSource
from looseleaf.replay.store import ResultStore

CLIFF = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 1.5)
"""Pools shown around the answer, in its multiples."""
RESOLUTION = 0.01
LARGEST_POOL = 1 << 24
"""Blocks. Nothing larger is tried."""


@dataclass(frozen=True, slots=True)
class Target:
    """Enough of the requests meet the latencies."""

    slo: Slo
    share: float = 0.99
    """Of the requests; those refused count as missing them."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigurationError(f"The share of requests is {self.share} but must be above 0 and at most 1.")

    def __str__(self) -> str:
        return f"{100 * self.share:.4g}% of the requests within {self.slo}"


@dataclass(frozen=True, slots=True)
class PoolTry:
    """What one pool size gave."""

    num_blocks: int
    meets: bool
    share: float
    """Of the requests that meet the latencies."""
    ample: bool = False
    """Nothing ever lacked blocks and nothing cached was given up: a larger pool gives the same replay."""
    ttft_p99: float = math.nan
    tpot_p99: float = math.nan
    preemptions: int = 0
    binding: str = ""
    """What mostly held requests back: blocks, seats or budget; arrivals where nothing did for long."""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class SmallestPool:
    """The answer, and everything tried on the way, smallest first."""

    target: Target
    num_blocks: int
    tries: tuple[PoolTry, ...]
    monotone: bool
    """No pool that was tried above one that meets the target misses it. (If one does, the answer lies above it.)"""


class TargetOutOfReach(LooseleafError):
    """No pool meets the target, however large: memory is not what keeps requests from it.

    Attributes: `share` of the requests that the largest pool tried lets meet it, and `num_blocks` of that pool.
    """

    def __init__(self, message: str, *, share: float, num_blocks: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.share = share
        self.num_blocks = num_blocks


Trial = Callable[[Sequence[int]], Sequence[PoolTry]]
"""Pool sizes in blocks → what each gave."""


def find_smallest_pool(
    source: TraceSource,
    settings: Settings,
    cost: StepCost,
    target: Target,
    store: ResultStore,
    *,
    processes: int | None = None,
    told: Callable[[PoolTry], None] | None = None,
) -> SmallestPool:
    """Search by replays of `source`; the pool of `settings` is where it begins.

    Raises `TargetOutOfReach`, or what refuses every pool.
    """

    def trial(sizes: Sequence[int]) -> list[PoolTry]:
        cells = run_matrix(
            source,
            [replace(settings, pool_tokens=size * settings.block_size) for size in sizes],
            cost,
            store,
            processes=processes,
        )
        tries = [_judge(cell, target) for cell in cells]
        for each in tries:
            if told is not None:
                told(each)
        return tries

    return search(trial, target, start=max(settings.num_blocks, 1), width=processes or usable_cores())


def search(trial: Trial, target: Target, *, start: int, width: int = 2) -> SmallestPool:
    """Double or halve from `start` until the answer is between two pools, then cut what is between into `width` + 1."""
    tries: dict[int, PoolTry] = {}

    def meets(*sizes: int) -> None:
        new = [size for size in dict.fromkeys(sizes) if size >= 1 and size not in tries]
        tries.update({each.num_blocks: each for each in trial(new)} if new else {})

    high = start
    meets(high)
    while not tries[high].meets:
        if tries[high].ample or high >= LARGEST_POOL:
            raise _out_of_reach(tries[high], target)
        high = min(2 * high, LARGEST_POOL)
        meets(high)
    low = high // 2
    while low >= 1:
        meets(low)
        if not tries[low].meets:
            break
        low, high = low // 2, low
    while high - low > max(1, math.floor(high * RESOLUTION)):
        between = sorted({low + (high - low) * i // (width + 1) for i in range(1, width + 1)} - {low, high})
        meets(*between)
        for size in between:
            if tries[size].meets:
                high = size
                break
            low = size
    meets(*(round(high * share) for share in CLIFF))
    return _answer(tries, target)


def _answer(tries: dict[int, PoolTry], target: Target) -> SmallestPool:
    in_order = [tries[size] for size in sorted(tries)]
    failing = [place for place, each in enumerate(in_order) if not each.meets]
    first = failing[-1] + 1 if failing else 0
    monotone = not any(each.meets for each in in_order[:first])
    if first == len(in_order):
        raise _out_of_reach(in_order[-1], target)
    return SmallestPool(target, in_order[first].num_blocks, tuple(in_order), monotone)


def _judge(cell: Cell, target: Target) -> PoolTry:
    num_blocks = cell.settings.num_blocks
    outcome = cell.outcome
    if outcome is None:
        return PoolTry(num_blocks, meets=False, share=0.0, refusal=cell.refusal)
    share = outcome.goodput(target.slo).share
    return PoolTry(
        num_blocks,
        meets=share >= target.share,
        share=share,
        ample=outcome.ample,
        ttft_p99=outcome.latencies["ttft"]["p99"],
        tpot_p99=outcome.latencies["tpot"]["p99"],
        preemptions=outcome.totals["preemptions"],
        binding=outcome.binding,
    )


def _out_of_reach(largest: PoolTry, target: Target) -> LooseleafError:
    if largest.refusal:
        return ConfigurationError(f"A pool of {largest.num_blocks:,} blocks is refused: {largest.refusal}")
    why = "where nothing lacks memory any more" if largest.ample else "the largest that is tried"
    held = {
        "seats": "Requests wait for seats: raise --max-num-seqs.",
        "budget": "Requests wait for the token budget of the step: raise --max-num-batched-tokens.",
    }.get(largest.binding, "Use faster hardware, a smaller model, or fewer requests a second.")
    return TargetOutOfReach(
        f"No pool meets the target: with {largest.num_blocks:,} blocks, {why}, {largest.share:.1%} of the requests are "
        f"within {target.slo}, and {target.share:.1%} are wanted (99th percentiles: first token {largest.ttft_p99:.3g} "
        f"s, per token {largest.tpot_p99:.3g} s).",
        share=largest.share,
        num_blocks=largest.num_blocks,
        hint=held,
    )
