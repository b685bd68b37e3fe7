"""Latency targets, and how much of the work met them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from looseleaf.errors import ConfigurationError

if TYPE_CHECKING:
    import polars as pl

_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)")


def parse_seconds(text: str) -> float:
    """ "2s", "100ms", "1.5" → seconds. Raises `ConfigurationError`."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or match[2] not in _SECONDS:
        raise ConfigurationError(f"{text!r} is no duration.", hint="Write a number and s, ms, m or h: 2s, 100ms.")
    return float(match[1]) * _SECONDS[match[2]]


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must meet to count, in seconds; None: anything will do."""

    ttft: float | None = None
    """From arrival to the first token."""
    tpot: float | None = None
    """Per output token after the first, the mean over the request; also written itl."""
    e2e: float | None = None
    """From arrival to the last token."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigurationError(f"The latency target {field.name} is {value} s but must be above 0.")

    @classmethod
    def parse(cls, text: str) -> Slo:
        """ "ttft=2s,itl=100ms" → targets. Raises `ConfigurationError`."""
        names = [field.name for field in fields(cls)]
        targets: dict[str, float] = {}
        for entry in text.split(","):
            name, equals, duration = entry.partition("=")
            name = {"itl": "tpot"}.get(name.strip().lower(), name.strip().lower())
            if name not in names or not equals or name in targets:
                raise ConfigurationError(
                    f"{entry.strip()!r} is no latency target.",
                    hint="Write ttft, itl (the same as tpot) or e2e, each once, as in ttft=2s,itl=100ms.",
                )
            targets[name] = parse_seconds(duration)
        return cls(**targets)

    def __str__(self) -> str:
        targets = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return ", ".join(f"{name} ≤ {value:g} s" for name, value in targets if value is not None)

    def met(self) -> pl.Expr:
        """Over a table of requests (`ReplayResult.requests`): whether each one meets all targets."""
        import polars as pl

        times = latencies()
        meets = pl.col("finished").is_not_null()
        for field in fields(self):
            if (limit := getattr(self, field.name)) is not None:
                meets &= times[field.name] <= limit
        return meets


def latencies() -> dict[str, pl.Expr]:
    """Over a table of requests: the seconds that each took. The mean gap of a request of one token is 0."""
    import polars as pl

    gaps = pl.col("output_tokens") - 1
    decoding = pl.col("finished") - pl.col("first_token")
    return {
        "queue": pl.col("admitted") - pl.col("arrival"),
        "ttft": pl.col("first_token") - pl.col("arrival"),
        "tpot": pl.when(gaps > 0).then(decoding / gaps).otherwise(0.0),
        "e2e": pl.col("finished") - pl.col("arrival"),
    }


@dataclass(frozen=True, slots=True)
class Goodput:
    """Of the requests, those that met the targets (goodput in the sense of DistServe, Zhong et al., OSDI 2024)."""

    requests: int
    """All that arrived, those refused included."""
    met: int
    output_tokens: int
    """Of those that met them, all their samples."""
    seconds: float
    """The replay's makespan."""

    @property
    def share(self) -> float:
        return self.met / self.requests if self.requests else math.nan

    @property
    def requests_per_second(self) -> float:
        return self.met / self.seconds if self.seconds else math.nan

    @property
    def tokens_per_second(self) -> float:
        return self.output_tokens / self.seconds if self.seconds else math.nan


def goodput(requests: pl.DataFrame, slo: Slo, *, seconds: float, refused: int = 0) -> Goodput:
    """How many of `requests` met all targets of `slo`; those `refused` did not."""
    import polars as pl

    met = slo.met()
    row = requests.select(
        met=met.sum(), tokens=(pl.col("output_tokens") * pl.col("num_samples")).filter(met).sum()
    ).row(0, named=True)
    return Goodput(len(requests) + refused, row["met"] or 0, row["tokens"] or 0, seconds)
