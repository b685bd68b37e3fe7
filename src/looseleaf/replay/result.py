"""What a replay gives: one row per request, a timeline, totals, and the distributions of the latencies."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from looseleaf.errors import ConfigurationError
from looseleaf.replay.request_log import LATENCIES, RequestLog
from looseleaf.replay.timeline import MEASURES, REASONS, Timeline

if TYPE_CHECKING:
    import polars as pl

PERCENTS = (50, 90, 95, 99)


@dataclass(slots=True)
class Totals:
    """Counts over the whole replay; seconds are virtual."""

    requests: int = 0
    """Finished."""
    refused: int = 0
    """Left out, since they could never run."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    """Of all samples."""
    steps: int = 0
    makespan: float = 0.0
    """From the beginning of the trace to the last token."""
    busy_seconds: float = 0.0
    """Of it, those in which a step ran."""
    computed_tokens: int = 0
    """Query tokens that went through the model, those computed again included."""
    preemptions: int = 0
    preempted_tokens: int = 0
    """Tokens whose keys and values those preemptions gave up."""
    recomputed_tokens: int = 0
    """Of them, those computed again: the prefix cache had kept the others."""
    prefix_query_tokens: int = 0
    """Tokens of all admissions that were looked up, those after a preemption included."""
    prefix_hit_tokens: int = 0
    cached_prompt_tokens: int = 0
    """Prompt tokens that came from the cache when their request was first admitted."""
    evictions: int = 0
    """Cached blocks given up for another sequence."""
    copies: int = 0
    """Blocks copied: copy-on-write, contiguous forks, and begun blocks taken over from the prefix cache."""
    peak_blocks: int = 0
    """Most blocks that sequences held at once."""
    peak_running: int = 0
    peak_waiting: int = 0
    mean_running: float = 0.0
    """This and the following: averages over the busy time."""
    mean_waiting: float = 0.0
    mean_table_blocks: float = 0.0
    """Entries of a running sequence's block table."""
    slot_shares: dict[str, float] = field(default_factory=dict)
    """By kind (token_states, reserved, internal_fragmentation, free; they add up to 1; and cached, which is part of
    free): share of the pool's slots."""
    saved_by_sharing: float = 0.0
    """Slots that would be needed on top without sharing, as a share of the pool."""
    bound_seconds: dict[str, float] = field(default_factory=dict)
    """Busy seconds by what kept more from running: blocks, seats, budget, arrivals (nobody waited)."""

    @property
    def output_tokens_per_second(self) -> float:
        return self.output_tokens / self.makespan if self.makespan else math.nan

    @property
    def requests_per_second(self) -> float:
        return self.requests / self.makespan if self.makespan else math.nan

    @property
    def binding_constraint(self) -> str:
        """What bound for the longest time."""
        return max(self.bound_seconds, key=lambda reason: self.bound_seconds[reason], default="arrivals")

    @property
    def held_slots_with_tokens(self) -> float:
        """Of the slots that sequences held, the share that held tokens."""
        held = 1 - self.slot_shares.get("free", 1.0)
        return self.slot_shares["token_states"] / held if held else math.nan


class ReplayResult:
    """Deterministic: the same trace, settings and cost give the same result, to the bit."""

    def __init__(self, settings: dict[str, Any], totals: Totals, log: RequestLog, timeline: Timeline) -> None:
        self.settings = settings
        """Of the trace, the configuration and the cost, as plain values."""
        self.totals = totals
        self.log = log
        self._timeline = timeline

    @property
    def requests(self) -> pl.DataFrame:
        """One row per finished request, in the order in which they ended: the fields of `FinishedRequest`.

        Raises `ConfigurationError` if they were not kept.
        """
        import polars as pl

        return pl.DataFrame(self.request_columns())

    def request_columns(self) -> dict[str, Any]:
        """The same as arrays."""
        if not self.log.keep:
            raise ConfigurationError(
                "This replay kept no requests, only their distributions.", hint="Replay with keep_requests=True."
            )
        return self.log.columns()

    @property
    def timeline(self) -> pl.DataFrame:
        """A bounded number of rows: `time` (seconds), `seconds` that the row stands for, averages of the slots by kind,
        `running`, `waiting`, `table_blocks`, and the seconds by reason. Idle time has no rows."""
        import polars as pl

        return pl.DataFrame(self.timeline_columns())

    def timeline_columns(self) -> dict[str, NDArray[np.float64]]:
        """The same as arrays."""
        return self._timeline.columns()

    def percentiles(self, percents: tuple[float, ...] = PERCENTS) -> dict[str, dict[str, float]]:
        """By latency (`ttft`, `tpot`, `itl`, `e2e`, `queue`; seconds): `mean`, `p50`, …

        Exact where requests were kept, except for `itl`; else within half a percent.
        """
        table: dict[str, dict[str, float]] = {}
        exact = self._latencies() if self.log.keep else {}
        for name in LATENCIES:
            if name in exact:
                values = exact[name]
                row = {"mean": float(values.mean()) if len(values) else math.nan}
                row |= {f"p{p:g}": float(np.percentile(values, p)) if len(values) else math.nan for p in percents}
            else:
                histogram = self.log.histograms[name]
                row = {"mean": histogram.mean} | {f"p{p:g}": histogram.percentile(p) for p in percents}
            table[name] = row
        return table

    def to_json(self) -> dict[str, Any]:
        """Settings, totals and percentiles as plain values."""
        return {
            "settings": self.settings,
            "totals": asdict(self.totals)
            | {
                "output_tokens_per_second": self.totals.output_tokens_per_second,
                "requests_per_second": self.totals.requests_per_second,
                "binding_constraint": self.totals.binding_constraint,
                "held_slots_with_tokens": self.totals.held_slots_with_tokens,
            },
            "latencies": self.percentiles(),
            "tenants": {name: asdict(totals) for name, totals in self.log.tenants.items()},
        }

    def save(self, folder: Path) -> None:
        """`result.json`, `timeline.parquet`, and `requests.parquet` where requests were kept."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_text(json.dumps(self.to_json(), indent=1) + "\n")
        self.timeline.write_parquet(folder / "timeline.parquet")
        if self.log.keep:
            self.requests.write_parquet(folder / "requests.parquet")

    def _latencies(self) -> dict[str, NDArray[np.float64]]:
        columns = self.log.columns()
        arrival, first, finished = (np.asarray(columns[name]) for name in ("arrival", "first_token", "finished"))
        gaps = np.asarray(columns["output_tokens"]) - 1
        several = gaps > 0
        return {
            "ttft": first - arrival,
            "tpot": (finished - first)[several] / gaps[several],
            "e2e": finished - arrival,
            "queue": np.asarray(columns["admitted"]) - arrival,
        }


def summed(timeline: Timeline, totals: Totals, num_slots: int) -> None:
    """Fill in the averages of `totals` from the timeline."""
    sums = timeline.sums
    seconds = sums["seconds"]
    totals.busy_seconds = seconds
    totals.bound_seconds = {reason: sums[f"{reason}_seconds"] for reason in REASONS}
    if not seconds:
        return
    mean = {name: sums[name] / seconds for name in MEASURES}
    totals.mean_running, totals.mean_waiting = mean["running"], mean["waiting"]
    totals.mean_table_blocks = mean["table_blocks"] / mean["running"] if mean["running"] else 0.0
    kinds = ("token_states", "reserved", "internal_fragmentation", "free", "cached")
    totals.slot_shares = {kind: mean[kind] / num_slots for kind in kinds}
    totals.saved_by_sharing = mean["saved_by_sharing"] / num_slots
