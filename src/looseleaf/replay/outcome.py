"""What a replay left on disk, or a moment ago in memory: its figures, tables, and what is derived from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from looseleaf.replay.goodput import Goodput, Slo, goodput, latencies
from looseleaf.replay.timeline import REASONS

if TYPE_CHECKING:
    import polars as pl

RARELY = 0.005
"""Share of the busy time: what binds for less is not named."""
KINDS = ("token_states", "reserved", "internal_fragmentation", "free")


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One finished replay. `figures` is what `ReplayResult.to_json` says: settings, totals, latencies, tenants."""

    figures: dict[str, Any]
    timeline: pl.DataFrame
    requests: pl.DataFrame

    @classmethod
    def read(cls, folder: Path) -> Outcome:
        """What `ReplayResult.save` wrote. Raises `OSError`, `ValueError` or polars' errors for anything else."""
        import polars as pl

        figures = json.loads((folder / "result.json").read_text())
        tables = [pl.read_parquet(folder / f"{name}.parquet") for name in ("timeline", "requests")]
        return cls(figures, *tables)

    @property
    def totals(self) -> dict[str, Any]:
        totals: dict[str, Any] = self.figures["totals"]
        return totals

    @property
    def latencies(self) -> dict[str, dict[str, float]]:
        """By name ("ttft", …): mean, p50, p90, p95, p99 in seconds."""
        table: dict[str, dict[str, float]] = self.figures["latencies"]
        return table

    @property
    def bound(self) -> dict[str, float]:
        """By constraint: the share of the busy time in which the next request waited for it; arrivals: none waited."""
        seconds = self.totals["bound_seconds"]
        busy = sum(seconds.values())
        return {reason: seconds[reason] / busy if busy else float(reason == "arrivals") for reason in REASONS}

    @property
    def binding(self) -> str:
        """Of blocks, seats and budget the one that bound longest; arrivals if none did for long."""
        limits = {reason: share for reason, share in self.bound.items() if reason != "arrivals"}
        longest = max(limits, key=lambda reason: limits[reason])
        return longest if limits[longest] >= RARELY else "arrivals"

    @property
    def ample(self) -> bool:
        """Nothing ever lacked blocks and nothing cached was given up: the same replay in a larger pool is the same."""
        totals = self.totals
        return not (
            totals["bound_seconds"]["blocks"] or totals["preemptions"] or totals["evictions"] or totals["refused"]
        )

    @property
    def prefix_hit_rate(self) -> float | None:
        """Share of all prompt tokens that came from the cache when their request was first admitted."""
        asked = self.totals["prompt_tokens"]
        return self.totals["cached_prompt_tokens"] / asked if asked else None

    def row(self) -> dict[str, Any]:
        """All figures that are numbers or words, by name, as one flat row."""
        row: dict[str, Any] = {}
        for name, value in {**self.figures["settings"]["config"], **self.totals, **self.latencies}.items():
            row |= {f"{name}_{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
        return row

    def goodput(self, slo: Slo) -> Goodput:
        return goodput(self.requests, slo, seconds=self.totals["makespan"], refused=self.totals["refused"])

    def quantiles(self, kind: str, count: int = 201) -> list[float]:
        """Of a latency over the requests, at `count` even steps from the smallest to the largest."""
        import numpy as np

        values = self.requests.select(latencies()[kind]).to_series().to_numpy()
        return np.quantile(values, np.linspace(0, 1, count)).tolist() if len(values) else []

    def tenants(self, slo: Slo | None) -> list[dict[str, Any]]:
        """Of each tenant, busiest first: requests, output tokens and their share of all, latencies, and share within
        `slo`."""
        import polars as pl

        times = latencies()
        tokens = pl.col("output_tokens") * pl.col("num_samples")
        columns = {
            "requests": pl.len(),
            "prompt_tokens": pl.col("prompt_tokens").sum(),
            "output_tokens": tokens.sum(),
            "cached_prompt_tokens": pl.col("num_cached").sum(),
            "preemptions": pl.col("num_preemptions").sum(),
            "ttft_mean": times["ttft"].mean(),
            "ttft_p99": times["ttft"].quantile(0.99),
            "e2e_mean": times["e2e"].mean(),
        }
        if slo is not None:
            columns["slo_share"] = slo.met().mean()
        table = self.requests.group_by("tenant").agg(**columns)
        table = table.with_columns(output_share=pl.col("output_tokens") / pl.col("output_tokens").sum())
        return table.sort("output_tokens", "tenant", descending=[True, False]).to_dicts()
