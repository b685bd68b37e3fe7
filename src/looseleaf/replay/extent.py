"""What a sweep must know of a trace beforehand: how much there is, its longest request, whether prompts begin alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from looseleaf.replay.sources import TraceSource


@dataclass(frozen=True, slots=True)
class Extent:
    requests: int
    prompt_tokens: int
    output_tokens: int
    """Of all samples."""
    longest: int
    """Prompt and output of one request."""
    seconds: float
    """Between the first and the last arrival."""
    tenants: int
    shares: bool
    """The trace says which prompts begin alike."""
    warnings: Sequence[str] = ()

    @property
    def model_len(self) -> int:
        """The smallest power of two that holds the longest request."""
        return 1 << (self.longest - 1).bit_length()

    def lines(self) -> list[str]:
        rate = f"; {self.requests / self.seconds:.3g} requests a second" if self.seconds else ", all at once"
        tenants = f" Tenants: {self.tenants:,}." if self.tenants > 1 else ""
        return [
            f"{self.requests:,} requests, {self.prompt_tokens:,} prompt and {self.output_tokens:,} output tokens in "
            f"{self.seconds:,.0f} s{rate}. Longest request: {self.longest:,} tokens.{tenants}"
        ]


def measure(source: TraceSource) -> Extent:
    """One pass over the trace, in flat memory."""
    trace = source.open()
    requests = prompt_tokens = output_tokens = longest = 0
    first = last = 0.0
    tenants: set[str] = set()
    shares = False
    for batch in trace.batches():
        if not len(batch):
            continue
        prompts, outputs = batch["prompt_tokens"].cast(pl.Int64), batch["output_tokens"].cast(pl.Int64)
        if not requests:
            first = float(batch["arrival"][0])
        last = float(batch["arrival"][-1])
        requests += len(batch)
        prompt_tokens += int(prompts.sum())
        output_tokens += int((outputs * batch["num_samples"]).sum())
        longest = max(longest, *(prompts + outputs).to_list())
        tenants.update(batch["tenant"].unique())
        shares = shares or batch["run_firsts"].null_count() < len(batch)
    skipped = [f"{each.count:,} lines were left out: {each.reason}, the first is line {each.first_line}."
               for each in trace.origin.skipped]  # fmt: skip
    return Extent(
        requests,
        prompt_tokens,
        output_tokens,
        longest,
        last - first,
        len(tenants),
        shares,
        (*skipped, *trace.origin.notes),
    )
