"""What one sampling step costs, beside the torch calls that would do the least that is needed.

    python benchmarks/bench_sampler.py [--rows 64] [--vocab 49152] [--threads 2] [--json]

Cases and baselines take turns, so that a noisy moment of the machine hits them all. The table shows the median,
the 10th and 90th percentile, and the ratio of medians to two baselines: torch.argmax, and
torch.multinomial(torch.softmax(...)).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import torch

from looseleaf.engine.sampler import sample
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.engine.sampling_rows import SamplingRows

CONTEXT = 1_000
"""Tokens of each prompt, for the penalties."""

CASES = {
    "greedy": SamplingParams(temperature=0),
    "greedy, 5 logprobs": SamplingParams(temperature=0, logprobs=5),
    "greedy, penalties": SamplingParams(temperature=0, repetition_penalty=1.1, frequency_penalty=0.1),
    "temperature": SamplingParams(temperature=0.8),
    "min_p": SamplingParams(min_p=0.05),
    "top_k 50": SamplingParams(top_k=50),
    "top_p 0.9": SamplingParams(top_p=0.9),
    "top_k 50, top_p 0.9": SamplingParams(top_k=50, top_p=0.9),
    "all of them, 5 logprobs": SamplingParams(
        temperature=0.8, top_k=50, top_p=0.9, min_p=0.05, repetition_penalty=1.1, logprobs=5
    ),
}
ARGMAX, MULTINOMIAL = "torch.argmax", "torch.softmax, multinomial"


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    median: float
    """Milliseconds per step, as are `low` and `high`."""
    low: float
    high: float
    to_argmax: float
    to_multinomial: float


def language_like_logits(rows: int, vocab: int) -> torch.Tensor:
    """Zipf's law with noise: 69% of the probability on the 50 most likely tokens, 90% on about 1,500."""
    generator = torch.Generator().manual_seed(0)
    ranks = torch.stack([torch.randperm(vocab, generator=generator) for _ in range(rows)])
    return -1.2 * (ranks + 1).float().log() + torch.randn(rows, vocab, generator=generator)


def step_of(params: SamplingParams, logits: torch.Tensor) -> Callable[[], object]:
    """Everything that a step pays: selecting the batch, sampling, recording the tokens."""
    count, vocab = logits.shape
    prompts = np.random.default_rng(0).integers(0, vocab, (count, CONTEXT))
    rows = SamplingRows(count, [0])
    for row in range(count):
        rows.add(row, params, seed=row, prompt=prompts[row].tolist())
    selected = np.arange(count)

    def step() -> None:
        rows.append(selected, sample(logits, rows.select(selected)).token_ids)

    return step


def measure(logits: torch.Tensor, repeats: int) -> list[Figure]:
    calls: dict[str, Callable[[], object]] = {
        ARGMAX: lambda: logits.argmax(-1),
        MULTINOMIAL: lambda: torch.multinomial(torch.softmax(logits, -1), 1),
        **{name: step_of(params, logits) for name, params in CASES.items()},
    }
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            call()
            if turn:  # the first is for warming up
                samples[name].append((time.perf_counter_ns() - start) / 1e6)
    quantiles = {name: [float(q) for q in np.quantile(values, (0.5, 0.1, 0.9))] for name, values in samples.items()}
    return [
        Figure(name, median, low, high, median / quantiles[ARGMAX][0], median / quantiles[MULTINOMIAL][0])
        for name, (median, low, high) in quantiles.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of one sampling step.")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    figures = measure(language_like_logits(arguments.rows, arguments.vocab), arguments.repeats)
    if arguments.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=1))
        return
    print(f"{arguments.rows} rows, vocabulary of {arguments.vocab:,}, {arguments.threads} threads")
    print(f"{'ms per step':28} {'median':>8} {'10%':>8} {'90%':>8} {'÷ argmax':>9} {'÷ multinomial':>14}")
    for f in figures:
        print(f"{f.what:28} {f.median:8.2f} {f.low:8.2f} {f.high:8.2f} {f.to_argmax:9.2f} {f.to_multinomial:14.2f}")


if __name__ == "__main__":
    main()
