"""OPT-13B (and LLaMA-13B) on one A100-40GB, as the paper served it in 2023.

The pool is the paper's (Table 1: 12 GB, 15.7 K slots of 800 KB). How long a step took is not published; it follows
from two of the published bars by Little's law, and so vLLM's two bars of Figure 13 are put in, not predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from looseleaf.replay.settings import Settings
from looseleaf.replay.sources import TraceSource

KV_BYTES_PER_TOKEN = 2 * 40 * 5120 * 2
"""Keys and values, layers, hidden size, bytes of float16: 800 KB."""
POOL_TOKENS = 12 * 2**30 // KV_BYTES_PER_TOKEN
MAX_MODEL_LEN = 2048
FLOPS_PER_TOKEN = 2 * 12.85e9
A100_FLOPS = 312e12
PREFILL_EFFICIENCY = 0.5

SHAREGPT = (161.31, 337.99)
ALPACA = (19.31, 58.45)
"""Mean tokens of input and output (Figure 11)."""
SHAREGPT_RATE, ALPACA_RATE = 2.0, 30.0
"""Requests a second in Figure 13."""
CV, MOST = 1.0, 1024
"""Only the means are published: lengths are log-normal with this coefficient of variation, and no longer than this."""

# vLLM's bars of Figure 13: requests in the batch.
SHAREGPT_BATCHED, ALPACA_BATCHED = 30.42, 132.44


@dataclass(frozen=True, slots=True)
class StepTime2023:
    """A part for the step, one for each sequence in it, and the arithmetic of prompt tokens."""

    step: float
    sequence: float
    prompt_token: float

    def seconds(
        self,
        *,
        num_tokens: int,
        num_seqs: int,
        num_sampled: int,  # noqa: ARG002
        context_tokens: int,  # noqa: ARG002
        attention_pairs: int,  # noqa: ARG002
    ) -> float:
        return self.step + num_seqs * self.sequence + (num_tokens - num_seqs) * self.prompt_token

    def decode_seconds(
        self,
        *,
        num_seqs: int,
        context_tokens: int,  # noqa: ARG002
        num_steps: int,
    ) -> NDArray[np.float64]:
        return np.full(num_steps, self.step + num_seqs * self.sequence)

    def describe(self) -> dict[str, Any]:
        return {"kind": "paper", "step": self.step, "sequence": self.sequence, "prompt_token": self.prompt_token}


def step_time() -> StepTime2023:
    """By Little's law the N requests in the batch stay N / rate seconds, one step for each output token. That gives the
    duration of a step at two batch sizes; what prompts add in it is their arithmetic; the rest is a straight line."""
    prompt_token = FLOPS_PER_TOKEN / (A100_FLOPS * PREFILL_EFFICIENCY)
    points = []
    for (prompt, output), rate, batched in (
        (SHAREGPT, SHAREGPT_RATE, SHAREGPT_BATCHED),
        (ALPACA, ALPACA_RATE, ALPACA_BATCHED),
    ):
        step = batched / rate / output
        points.append((batched, step - step * rate * prompt * prompt_token))
    (few, short), (many, long) = points
    sequence = (long - short) / (many - few)
    return StepTime2023(short - few * sequence, sequence, prompt_token)


def settings(allocator: str = "paged", block_size: int = 16, *, prefix_caching: bool = False) -> Settings:
    """First come first served. Orca's regions are not rounded to blocks; its pool is the same."""
    return Settings(
        pool_tokens=POOL_TOKENS,
        max_model_len=MAX_MODEL_LEN,
        allocator=allocator,
        block_size=block_size if allocator == "paged" else 1,
        prefix_caching=prefix_caching,
        max_num_seqs=256,
        max_num_batched_tokens=2560,
        max_bypass=0,
    )


def conversations(lengths: tuple[float, float], rate: float, count: int, *, samples: int = 1) -> TraceSource:
    """Poisson arrivals of requests with these mean lengths."""
    prompt, output = lengths
    shape = f"prompt=lognormal:{prompt}:{CV}:{MOST},output=lognormal:{output}:{CV}:{MOST}"
    return TraceSource(f"n={count},arrivals=poisson:{rate},{shape},samples={samples},seed=2023")


def translations(shared_prefix: int, count: int) -> TraceSource:
    """Sentences behind one prefix that all share, as many as can be taken. Their lengths are not published."""
    shape = "prompt=lognormal:30:0.6:256,output=lognormal:30:0.6:256"
    return TraceSource(f"n={count},arrivals=all,{shape},system={shared_prefix},seed=2023")
