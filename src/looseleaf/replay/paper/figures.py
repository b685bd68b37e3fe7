"""What each figure shows, published and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from looseleaf.replay.goodput import latencies
from looseleaf.replay.matrix import run_matrix
from looseleaf.replay.outcome import Outcome
from looseleaf.replay.paper import system as setup
from looseleaf.replay.settings import Settings
from looseleaf.replay.sources import TraceSource
from looseleaf.replay.store import ResultStore

ALLOCATORS = {
    "contiguous-max": "Orca (Max)",
    "contiguous-pow2": "Orca (Pow2)",
    "contiguous-oracle": "Orca (Oracle)",
    "paged": "vLLM / paged",
}
SHAREGPT_REQUESTS, ALPACA_REQUESTS, TRANSLATIONS = 1200, 6000, 3000
SHAREGPT_SAMPLED, ALPACA_SAMPLED = 300, 1500
"""Requests of the figure on parallel sampling."""
BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)
SAMPLES = (2, 4, 6)


@dataclass(frozen=True, slots=True)
class Row:
    figure: str
    title: str
    """Of the figure: what its values are."""
    case: str
    published: str
    """With a star: the label of a plot, not a figure of the text."""
    ours: str
    why: str = ""
    """They differ."""


@dataclass(slots=True)
class _Lab:
    store: ResultStore
    processes: int | None
    told: Callable[[str], None]
    fresh: bool

    def run(self, title: str, source: TraceSource, settings: Sequence[Settings]) -> list[Outcome]:
        self.told(title)
        cells = run_matrix(source, settings, setup.step_time(), self.store, fresh=self.fresh, processes=self.processes)
        outcomes = [cell.outcome for cell in cells if cell.outcome is not None]
        assert len(outcomes) == len(cells), [cell.refusal for cell in cells]
        return outcomes


def remake(
    store: ResultStore,
    *,
    processes: int | None = None,
    fresh: bool = False,
    told: Callable[[str], None] = lambda _title: None,
) -> list[Row]:
    """Every row of every figure. `told` hears what is being replayed."""
    lab = _Lab(store, processes, told, fresh)
    every = [setup.settings(name) for name in ALLOCATORS]
    sharegpt = setup.conversations(setup.SHAREGPT, setup.SHAREGPT_RATE, SHAREGPT_REQUESTS)
    alpaca = setup.conversations(setup.ALPACA, setup.ALPACA_RATE, ALPACA_REQUESTS)
    of_sharegpt = lab.run("Figures 2 and 13a: ShareGPT, 2 requests/s", sharegpt, every)
    of_alpaca = lab.run("Figure 13b: Alpaca, 30 requests/s", alpaca, every)
    return [
        *_memory_use(of_sharegpt),
        *_batched("13a", "ShareGPT", of_sharegpt, ("7.00", "9.81", "13.62", "30.42")),
        *_batched("13b", "Alpaca", of_alpaca, ("7.00", "43.24", "72.75", "132.44")),
        *_parallel_samples(lab),
        *_shared_prefix(lab),
        *_block_sizes(lab),
    ]


def while_they_come(outcome: Outcome) -> pl.DataFrame:
    """The timeline between the first tenth of the arrivals and the last: without filling up and running dry."""
    arrivals = outcome.requests["arrival"]
    first, last = arrivals.quantile(0.1), arrivals.max()
    rows = outcome.timeline.filter(pl.col("time").is_between(first, last))
    return rows if len(rows) else outcome.timeline


def averages(rows: pl.DataFrame) -> dict[str, float]:
    """Of every column, weighted by time."""
    seconds = pl.col("seconds")
    return rows.select((pl.all().exclude("seconds") * seconds).sum() / seconds.sum()).row(0, named=True)


def _memory_use(outcomes: Sequence[Outcome]) -> list[Row]:
    """Figure 2: what slots are used for. Token states, reserved, internal fragmentation, the rest."""
    published = (
        "20.4, 13.3*, 57.3*, 8.9*",
        "26.8, 17.9*, 13.6*, 41.6*",
        "38.2, 25.2*, –, 36.6*",
        "96.3, –, –, 3.7*",
    )
    why = (
        "Shares follow from lengths, of which only the means are published.",
        "What rounding to a buddy's size wastes counts as internal here and as external in the paper; the two together "
        "agree.",
        "Regions are placed by first fit here, by buddies in the paper: their rounding is its external fragmentation.",
        "Of the slots that sequences hold; the paper does not say what its 3.7 % are.",
    )
    rows = []
    for name, outcome, known, reason in zip(ALLOCATORS.values(), outcomes, published, why, strict=True):
        mean = averages(while_they_come(outcome))
        total = mean["token_states"] + mean["reserved"] + mean["internal_fragmentation"] + mean["free"]
        if name == "vLLM / paged":
            total -= mean["free"]
            mean["free"] = 0.0
        kinds = ("token_states", "reserved", "internal_fragmentation", "free")
        shown = ", ".join(f"{mean[kind] / total:.1%}".rstrip("%") for kind in kinds)
        rows.append(
            Row("2", "KV slots, %: with tokens, reserved, internally wasted, the rest", name, known, shown, reason)
        )
    return rows


def _batched(figure: str, data: str, outcomes: Sequence[Outcome], published: Sequence[str]) -> list[Row]:
    why = {
        "Orca (Max)": "",
        "Orca (Pow2)": "Beyond their means the lengths are ours.",
        "Orca (Oracle)": "No rounding to buddies here, so more fit.",
        "vLLM / paged": "Put in: the step time is set by this bar.",
    }
    title = f"requests in the batch, mean, {data}"
    means = [averages(while_they_come(outcome))["running"] for outcome in outcomes]
    return [
        Row(figure, title, name, known, f"{mean:.2f}", why[name])
        for name, mean, known in zip(ALLOCATORS.values(), means, published, strict=True)
    ]


def _parallel_samples(lab: _Lab) -> list[Row]:
    rows = []
    for data, lengths, rate, count, published in (
        ("Alpaca", setup.ALPACA, 4.0, ALPACA_SAMPLED, ("6.1", "8.5*", "9.8")),
        ("ShareGPT", setup.SHAREGPT, 0.1, SHAREGPT_SAMPLED, ("16.2", "between", "30.5")),
    ):
        for samples, known in zip(SAMPLES, published, strict=True):
            source = setup.conversations(lengths, rate, count, samples=samples)
            (outcome,) = lab.run(f"Figure 15a: {data}, {samples} samples", source, [setup.settings()])
            mean = averages(outcome.timeline)
            held = mean["token_states"] + mean["reserved"] + mean["internal_fragmentation"]
            saved = mean["saved_by_sharing"] / (held + mean["saved_by_sharing"])
            why = "Full blocks of the prompt stay shared: it depends on how many prompts are longer than a block."
            rows.append(
                Row(
                    "15a", f"blocks saved by sharing, %, {data}", f"{samples} samples", known, f"{100 * saved:.1f}", why
                )
            )
    beams = "Not remade: which beams survive depends on the model's probabilities, which lengths do not tell."
    rows.append(Row("15b", "blocks saved by sharing, %, Alpaca", "2, 4, 6 beams", "37.6, 53.1*, 55.2", "–", beams))
    return rows


def _shared_prefix(lab: _Lab) -> list[Row]:
    rows = []
    for shots, prefix, known in (("one example", 80, "1.67"), ("five examples", 341, "3.58")):
        source = setup.translations(prefix, TRANSLATIONS)
        oracle, paged = lab.run(
            f"Figure 16: prefix of {prefix} tokens",
            source,
            [setup.settings("contiguous-oracle"), setup.settings(prefix_caching=True)],
        )
        gain = paged.totals["requests_per_second"] / oracle.totals["requests_per_second"]
        why = (
            f"{prefix} tokens are shared. Published at equal latency, ours with a full queue; the lengths of the "
            "sentences (here 30 tokens each way) are not published."
        )
        rows.append(Row("16", "throughput with a shared prefix, over Orca (Oracle)", shots, known, f"{gain:.2f}", why))
    return rows


def _block_sizes(lab: _Lab) -> list[Row]:
    rows = []
    for data, lengths, rate, count, best in (
        ("ShareGPT", setup.SHAREGPT, setup.SHAREGPT_RATE, SHAREGPT_REQUESTS, (16, 32, 64, 128)),
        ("Alpaca", setup.ALPACA, setup.ALPACA_RATE, ALPACA_REQUESTS, (16, 32)),
    ):
        source = setup.conversations(lengths, rate, count)
        outcomes = lab.run(
            f"Figure 18b: block sizes, {data}", source, [setup.settings(block_size=size) for size in BLOCK_SIZES]
        )
        normalised = [
            outcome.requests.select((latencies()["e2e"] / pl.col("output_tokens")).mean()).item()
            for outcome in outcomes
        ]
        base = normalised[BLOCK_SIZES.index(16)]
        title = f"seconds per token, over those in blocks of 16, {data}"
        for size, value in zip(BLOCK_SIZES, normalised, strict=True):
            if size < best[0]:
                why = "The cost of a step does not know that kernels read small blocks more slowly."
            elif size in best and value > 1.1 * base:
                why = "At the rate of Figure 13 the pool is nearly full; the rate of Figure 18 is not published."
            else:
                why = ""
            published = "among the best" if size in best else "worse"
            rows.append(Row("18b", title, f"blocks of {size}", published, f"{value / base:.2f}", why))
    return rows
