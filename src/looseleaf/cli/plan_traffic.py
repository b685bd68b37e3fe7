"""Plans for traffic: a trace's lengths, and the smallest pool that serves it well enough, found by replay."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from looseleaf.cli.consoles import note, stdout
from looseleaf.plan.capacity import Capacity
from looseleaf.plan.errors import InvalidPlan
from looseleaf.plan.hardware import format_size
from looseleaf.plan.lengths import Lengths
from looseleaf.replay.extent import Extent, measure
from looseleaf.replay.goodput import Slo
from looseleaf.replay.roofline import Roofline
from looseleaf.replay.settings import Settings
from looseleaf.replay.smallest_pool import CLIFF, PoolTry, SmallestPool, Target, find_smallest_pool
from looseleaf.replay.sources import TraceSource
from looseleaf.replay.store import ResultStore, default_folder

WORTH_A_PROCESS = 4000
"""Requests of a trace whose replay takes longer than the start of another process."""


def lengths_of_trace(source: TraceSource) -> tuple[Lengths, Extent]:
    """The means of a trace, in one pass over it. Raises what opening it raises, and `InvalidPlan` if it is empty."""
    extent = measure(source)
    if not extent.requests:
        raise InvalidPlan(f"{source.name} has no requests.", hint="Give a trace with some.")
    for warning in extent.warnings:
        note(warning)
    prompt, output = extent.prompt_tokens / extent.requests, extent.output_tokens / extent.requests
    return Lengths(prompt, output, extent.longest), extent


@dataclass(frozen=True, slots=True)
class PoolSearch:
    """The answer for one trace, and what it means for the device."""

    capacity: Capacity
    lengths: Lengths
    trace: str
    device_blocks: int
    found: SmallestPool

    def nbytes(self, blocks: int) -> int:
        tokens = blocks * self.capacity.settings.block_size
        return self.capacity.bytes_of_tokens(tokens, self.lengths.at_end)

    @property
    def verdict(self) -> str:
        need, have = self.nbytes(self.found.num_blocks), self.nbytes(self.device_blocks)
        device = self.capacity.settings.hardware
        name = "the pool" if device is None else device.name
        if have >= need:
            return f"{name} has {format_size(have)}: {format_size(have - need)} more than it takes"
        return f"{name} has {format_size(have)}: {format_size(need - have)} TOO LITTLE"

    def as_json(self) -> dict[str, Any]:
        def plain(each: PoolTry) -> dict[str, Any]:
            values = asdict(each) | {"bytes": self.nbytes(each.num_blocks)}
            return {key: None if isinstance(v, float) and math.isnan(v) else v for key, v in values.items()}

        return {
            "target": str(self.found.target),
            "num_blocks": self.found.num_blocks,
            "bytes": self.nbytes(self.found.num_blocks),
            "device_blocks": self.device_blocks,
            "monotone": self.found.monotone,
            "tries": [plain(each) for each in self.found.tries],
        }

    def sheet_rows(self) -> list[list[str]]:
        def row(each: PoolTry) -> list[str]:
            name = f"{each.num_blocks} blocks ({format_size(self.nbytes(each.num_blocks))})"
            return ["smallest pool", name, f"{each.share:.6g}", "share", "meets" if each.meets else "misses"]

        return [row(each) for each in self.found.tries]

    def draw(self) -> None:
        console = stdout()
        answer = self.found.num_blocks
        console.print()
        console.print(Text(f"The smallest pool for {self.trace}", style="bold"))
        console.print(
            Text(f"{answer:,} blocks, {format_size(self.nbytes(answer))}: {self.found.target}; {self.verdict}"),
            style="bold green" if self.device_blocks >= answer else "bold red",
        )
        if not self.found.monotone:
            console.print(Text("Some smaller pools met the target and larger ones did not: the answer is above both."))
        table = Table("blocks", "pool", "within", "TTFT p99", "per token", "preempted", "held up by", box=None,
                      header_style="bold", pad_edge=False)  # fmt: skip
        for column in table.columns[:-1]:
            column.justify = "right"
        for each in _around(self.found):
            here = each.num_blocks == answer
            cells = (
                f"{each.num_blocks:,}" + ("" if each.num_blocks != self.device_blocks else "*"),
                format_size(self.nbytes(each.num_blocks)),
                f"{each.share:.1%}",
                _seconds(each.ttft_p99),
                _seconds(each.tpot_p99),
                f"{each.preemptions:,}",
                each.refusal[:30] or each.binding,
            )
            table.add_row(*cells, style="bold green" if here else "" if each.meets else "red")
        console.print(table)


def _around(found: SmallestPool) -> list[PoolTry]:
    """The answer, and what was tried nearest to each of the multiples that show the cliff."""
    wanted = [share * found.num_blocks for share in (*CLIFF, 1.0)]
    nearest = {min(found.tries, key=lambda each: abs(each.num_blocks - size)).num_blocks for size in wanted}
    return [each for each in found.tries if each.num_blocks in nearest]


def _seconds(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value * 1e3:,.0f} ms" if value < 1 else f"{value:,.2f} s"


def smallest_pool(
    capacity: Capacity, source: TraceSource, extent: Extent, lengths: Lengths, slo: str, share: float
) -> PoolSearch:
    """By replays of the trace under the plan's settings, from the device's own pool on.

    Raises `TargetOutOfReach` where no pool does, and `ConfigurationError` for hardware without figures.
    """
    settings = capacity.settings
    if settings.hardware is None:
        raise InvalidPlan("No hardware is given.", hint="Give --hardware by name: it says how long a step takes.")
    cost = Roofline(capacity.arithmetic, settings.hardware)
    tokens = max(capacity.tokens_at(lengths.at_end), settings.block_size)
    base = Settings(
        pool_tokens=tokens,
        max_model_len=min(capacity.max_model_len, extent.model_len),
        block_size=settings.block_size,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )
    target = Target(Slo.parse(slo), share)
    note(f"Searching the smallest pool for {target}, from {base.num_blocks:,} blocks on.")
    found = find_smallest_pool(
        source,
        base,
        cost,
        target,
        ResultStore(default_folder()),
        processes=1 if extent.requests < WORTH_A_PROCESS else None,
        told=lambda each: note(f"  {each.num_blocks:,} blocks: {each.share:.1%}{' within' if each.meets else ''}"),
    )
    return PoolSearch(capacity, lengths, source.name, base.num_blocks, found)
