"""The figures that every comparison shows, in the terminal and in the report: what each is called, means and how it is
written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from looseleaf.replay.goodput import Slo
from looseleaf.replay.outcome import Outcome

MISSING = "–"
DIGITS = ".3g"
"""Three, and more only before the point."""


@dataclass(frozen=True, slots=True)
class Figure:
    title: str
    meaning: str
    value: Callable[[Outcome], float | None]
    shape: str = ",.0f"
    better: Literal["higher", "lower", ""] = ""
    short: str = ""
    """Over a narrow column, which it gets where there is little room; else it is left out there."""

    def show(self, outcome: Outcome) -> str:
        value = self.value(outcome)
        return MISSING if value is None or math.isnan(value) else self._write(value)

    def best(self, outcomes: Sequence[Outcome]) -> set[int]:
        """Places of the best values as they are shown; none where all are alike or none is better."""
        values = [self.value(outcome) for outcome in outcomes]
        known = [value for value in values if value is not None and not math.isnan(value)]
        if not self.better or not known:
            return set()
        shown = [self.show(outcome) for outcome in outcomes]
        best = self._write(max(known) if self.better == "higher" else min(known))
        places = {place for place, text in enumerate(shown) if text == best}
        return set() if len(places) == len(outcomes) else places

    def _write(self, value: float) -> str:
        whole = self.shape == DIGITS and abs(value) >= 100
        return format(value, ",.0f" if whole else self.shape)


def _total(name: str) -> Callable[[Outcome], float | None]:
    return lambda outcome: outcome.totals[name]


def _slots(kind: str) -> Callable[[Outcome], float | None]:
    return lambda outcome: outcome.totals["slot_shares"].get(kind)


def _seconds(name: str, which: str) -> Callable[[Outcome], float | None]:
    return lambda outcome: outcome.latencies[name].get(which)


MEMORY: tuple[Figure, ...] = (
    Figure(
        "held slots with tokens",
        "Of the slots that running sequences held, the share with the key and value of a token; mean over time.",
        _total("held_slots_with_tokens"),
        ".1%",
        "higher",
        "held\nused",
    ),
    Figure(
        "pool slots with tokens",
        "The same of all slots of the pool; low also where there is not enough to do.",
        _slots("token_states"),
        ".1%",
        "",
        "pool\nused",
    ),
    Figure("reserved", "Slots held for tokens that will come; mean share of the pool.", _slots("reserved"), ".1%"),
    Figure(
        "internal fragmentation",
        "Slots held that will never have a token: the rest of a last block, or of a region; mean share of the pool.",
        _slots("internal_fragmentation"),
        ".1%",
        "lower",
    ),
    Figure(
        "free",
        "Slots that nobody holds; in contiguous memory also the holes too small to use. Mean share of the pool.",
        _slots("free"),
        ".1%",
    ),
    Figure(
        "kept in the prefix cache",
        "Of the free slots, those whose content can still be found.",
        _slots("cached"),
        ".1%",
    ),
    Figure(
        "saved by sharing",
        "Slots that would be needed on top if no block were shared; mean, as a share of the pool.",
        _total("saved_by_sharing"),
        ".1%",
    ),
    Figure("sequences running, mean", "That hold memory.", _total("mean_running"), ",.1f", "", "run-\nning"),
    Figure("sequences running, peak", "The most at once.", _total("peak_running")),
    Figure("waiting, mean", "Sequences in the queue.", _total("mean_waiting"), ",.1f", "lower", "wait-\ning"),
    Figure(
        "preemptions",
        "Times a sequence gave its blocks back and was computed again.",
        _total("preemptions"),
        ",.0f",
        "lower",
        "pre-\nempted",
    ),
    Figure(
        "tokens recomputed",
        "That preemptions dropped, less those that the prefix cache still had.",
        _total("recomputed_tokens"),
        ",.0f",
        "lower",
    ),
    Figure(
        "prompt tokens from the cache",
        "Share of all prompt tokens found in the prefix cache when their request was first admitted. Full and begun "
        "blocks count; a prompt's last token is always computed.",
        lambda outcome: outcome.prefix_hit_rate,
        ".1%",
        "higher",
        "cache\nhits",
    ),
    Figure("cached blocks evicted", "Given up for another sequence.", _total("evictions")),
    Figure("blocks copied", "Before a write, or taken over from the cache.", _total("copies")),
    Figure("blocks held at most", "By sequences, at once.", _total("peak_blocks")),
    Figure("block table, mean entries", "Of a running sequence.", _total("mean_table_blocks"), ",.1f"),
)

SERVICE: tuple[Figure, ...] = (
    Figure(
        "output tokens/s",
        "Over the time from the beginning of the trace to the last token.",
        _total("output_tokens_per_second"),
        ",.0f",
        "higher",
        "tokens\n/s",
    ),
    Figure("makespan, s", "From the beginning of the trace to the last token.", _total("makespan"), ",.0f", "lower"),
    Figure("steps", "Of the engine.", _total("steps")),
    Figure("queue, mean s", "From arrival to admission.", _seconds("queue", "mean"), DIGITS, "lower"),
    Figure(
        "first token, median s",
        "From arrival to the first token (TTFT).",
        _seconds("ttft", "p50"),
        DIGITS,
        "lower",
        "TTFT\np50",
    ),
    Figure(
        "first token, p99 s",
        "99 of 100 are sooner.",
        _seconds("ttft", "p99"),
        DIGITS,
        "lower",
        "TTFT\np99",
    ),
    Figure(
        "per output token, median s",
        "After the first; the mean over a request (TPOT).",
        _seconds("tpot", "p50"),
        DIGITS,
        "lower",
        "TPOT\np50",
    ),
    Figure("per output token, p99 s", "", _seconds("tpot", "p99"), DIGITS, "lower", "TPOT\np99"),
    Figure(
        "between tokens, p99 s",
        "Between two tokens of a sequence (ITL), over all tokens: shows stalls that the mean of a request hides.",
        _seconds("itl", "p99"),
        DIGITS,
        "lower",
    ),
    Figure("end to end, median s", "From arrival to the last token.", _seconds("e2e", "p50"), DIGITS, "lower"),
    Figure("end to end, p99 s", "", _seconds("e2e", "p99"), DIGITS, "lower", "E2E\np99"),
    Figure("requests refused", "That could never run under these settings.", _total("refused"), ",.0f", "lower"),
)


def service(slo: Slo | None) -> tuple[Figure, ...]:
    """What requests got; with goodput where there are latency targets."""
    if slo is None:
        return SERVICE
    return (
        *SERVICE,
        Figure(
            "requests within the targets",
            f"Share of all requests with {slo}.",
            lambda outcome: outcome.goodput(slo).share,
            ".1%",
            "higher",
            "in\nSLO",
        ),
        Figure(
            "goodput, requests/s",
            "Requests within the targets, per second of the whole replay.",
            lambda outcome: outcome.goodput(slo).requests_per_second,
            DIGITS,
            "higher",
        ),
    )


def binding(outcome: Outcome) -> str:
    """What held requests back, and how much of the busy time: "blocks 63%"; "arrivals" where nothing did for long."""
    name = outcome.binding
    return name if name == "arrivals" else f"{name} {outcome.bound[name]:.0%}"
