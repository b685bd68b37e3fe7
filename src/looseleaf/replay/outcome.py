"""What a replay left on disk, or a moment ago in memory: its figures, tables, and what is derived from them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from looseleaf.errors import ConfigurationError
from looseleaf.replay.goodput import Goodput, Slo, goodput, latencies
from looseleaf.replay.timeline import REASONS

if TYPE_CHECKING:
    import polars as pl

    from looseleaf.replay.result import ReplayResult

CURVE = tuple(percent / 2 for percent in range(201))
RARELY = 0.005
"""Share of the busy time: what binds for less is not named."""
KINDS = ("token_states", "reserved", "internal_fragmentation", "free")


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """One finished replay. `figures` is what `ReplayResult.to_json` says: settings, totals, latencies, tenants."""

    figures: dict[str, Any]
    timeline: pl.DataFrame
    curves: dict[str, list[float]]
    """By latency: its percentiles from 0 to 100, of all finished requests."""
    kept_requests: pl.DataFrame | None
    """None where a replay kept only distributions."""

    @classmethod
    def read(cls, folder: Path) -> Outcome:
        """What `write` wrote. Raises `OSError`, `ValueError` or polars' errors for anything else."""
        import polars as pl

        figures, curves = (json.loads((folder / name).read_text()) for name in ("result.json", "curves.json"))
        kept = folder / "requests.parquet"
        requests = pl.read_parquet(kept) if kept.exists() else None
        return cls(figures, pl.read_parquet(folder / "timeline.parquet"), curves, requests)

    @staticmethod
    def write(result: ReplayResult, folder: Path) -> None:
        """All of a result, into a folder of its own."""
        result.save(folder)
        percents = tuple(float(percent) for percent in CURVE)
        curves = {
            name: [row[f"p{percent:g}"] for percent in percents] for name, row in result.percentiles(percents).items()
        }
        (folder / "curves.json").write_text(json.dumps(curves))

    @property
    def requests(self) -> pl.DataFrame:
        """One row for each. Raises `ConfigurationError` if they were not kept."""
        if self.kept_requests is None:
            raise ConfigurationError(
                "This replay kept no requests, only how their latencies are distributed.",
                hint="Leave out --forget-requests.",
            )
        return self.kept_requests

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

    def tenants(self, slo: Slo | None) -> list[dict[str, Any]]:
        """Of each tenant, busiest first: requests, output tokens and their share of all, latencies, and share within
        `slo`."""
        if self.kept_requests is None:
            return _from_totals(self.figures["tenants"])
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


def _from_totals(tenants: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows without what only single requests tell."""
    whole = sum(totals["output_tokens"] for totals in tenants.values())
    rows = [
        {
            "tenant": name,
            "requests": totals["requests"],
            "prompt_tokens": totals["prompt_tokens"],
            "output_tokens": totals["output_tokens"],
            "cached_prompt_tokens": totals["cached_tokens"],
            "preemptions": totals["preemptions"],
            "ttft_mean": totals["ttft_seconds"] / totals["requests"],
            "ttft_p99": math.nan,
            "e2e_mean": totals["e2e_seconds"] / totals["requests"],
            "output_share": totals["output_tokens"] / whole,
        }
        for name, totals in tenants.items()
    ]
    return sorted(rows, key=lambda row: (-row["output_tokens"], row["tenant"]))
