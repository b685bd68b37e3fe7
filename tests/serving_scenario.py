"""What an engine may be put through in one go, drawn by Hypothesis: settings, requests and what disturbs them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from looseleaf.engine.sampling_params import SamplingParams

ADAPTERS = ("rank 3", "rank 20")
LONGEST_PROMPT = 700
"""Attention runs over partitions of 256 positions: some prompts must reach into the third."""
WHOLE = 10**6
FAVOURED = {7: 10.0, 11: 9.5, 201: 9.0}
"""A bias under which tokens come again, so that penalties decide."""


@dataclass(frozen=True)
class Prompt:
    """The beginning of an earlier request's tokens, then `own` tokens of its own."""

    own: int
    seed: int
    base: int | None = None
    """Which earlier request; None: it begins like nobody's."""
    kept: int = WHOLE
    """Tokens taken over from that request."""
    answered: bool = False
    """Whether its answer is among them, as in the next turn of a chat."""

    def tokens(self, begin: list[int]) -> list[int]:
        """`begin`: the earlier request's tokens."""
        taken = begin[: min(self.kept, LONGEST_PROMPT - self.own)]
        own = max(self.own, 0 if taken else 1)
        return taken + np.random.default_rng(self.seed).integers(0, 256, own).tolist()


@dataclass(frozen=True)
class Arrival:
    prompt: Prompt
    params: SamplingParams
    step: int = 0
    adapter: str | None = None


@dataclass(frozen=True)
class Disturbance:
    """Something that must change nobody else's answer."""

    step: int
    kind: str
    """"abort", "preempt" (the latest sequence), "pin", "unpin" or "reset" (of the prefix cache)."""
    target: int = 0
    """Of an abort or a pin: which request, modulo how many there are."""


@dataclass(frozen=True)
class Scenario:
    family: str
    weights: str
    """What the matrices are kept as."""
    settings: dict[str, Any]
    """Of the engine."""
    roominess: float
    """0: a pool that just holds the longest request, so that company means preemption; 1: all at once fit."""
    stirred: int
    """Seed of the order in which the pool gives out its blocks; 0: from the first to the last."""
    arrivals: tuple[Arrival, ...]
    disturbances: tuple[Disturbance, ...] = ()
    threads: int = 1
    isa: int = 0
    """Which instruction set of those that there are, the best first."""


def params(long: bool = False) -> st.SearchStrategy[SamplingParams]:
    """Greedy and sampled, with everything that looks at the logits or at what came before."""
    greedy = st.fixed_dictionaries({"temperature": st.just(0)})
    drawn = st.fixed_dictionaries(
        {"temperature": st.sampled_from([0.7, 1.0, 1.4])},
        optional={
            "top_k": st.sampled_from([1, 5, 40]),
            "top_p": st.sampled_from([0.5, 0.95]),
            "min_p": st.just(0.05),
        },
    )
    samples = st.fixed_dictionaries({"n": st.sampled_from([1, 1, 1, 2, 3, 4])}, optional={"best_of": st.just(4)})
    beams = st.fixed_dictionaries(
        {"beam_width": st.integers(2, 4), "n": st.integers(1, 2)},
        optional={"length_penalty": st.sampled_from([-1.0, 2.0]), "early_stopping": st.sampled_from([True, "never"])},
    )
    common = st.fixed_dictionaries(
        {
            "max_tokens": st.integers(1, 8 if long else 24),
            "logprobs": st.sampled_from([0, 3, 6]),
            "seed": st.one_of(st.none(), st.integers(0, 2**32)),
        },
        optional={
            "repetition_penalty": st.just(1.2),
            "frequency_penalty": st.just(1.5),
            "logit_bias": st.just(FAVOURED),
            "min_tokens": st.just(1),
            "stop_token_ids": st.just(tuple(range(5, 256, 16))),
            "prompt_logprobs": st.sampled_from([None, None, 2]),
        },
    )
    of_samples = st.builds(operator.or_, st.one_of(greedy, drawn), samples)
    return st.builds(
        lambda a, b: SamplingParams(**a, **b), st.one_of(of_samples, of_samples, of_samples, beams), common
    )


@st.composite
def prompts(draw: st.DrawFn, index: int, long: bool) -> Prompt:
    """The `index`-th one: its own from the beginning, or beginning as an earlier one does."""
    kind = draw(st.sampled_from(["new", "begins", "begins", "same", "continues"])) if index else "new"
    if kind == "new":
        return Prompt(draw(st.integers(200, 600) if long else st.integers(1, 60)), seed=index)
    base = draw(st.integers(0, index - 1))
    if kind == "same":
        return Prompt(0, seed=index, base=base)
    own = draw(st.sampled_from([0, 1, 7, 20]))
    if kind == "continues":
        return Prompt(own, seed=index, base=base, answered=True)
    kept = draw(st.one_of(st.integers(1, 60), st.integers(200, 600)) if long else st.integers(1, 60))
    return Prompt(own, seed=index, base=base, kept=kept)


@st.composite
def arrivals(draw: st.DrawFn, most: int, long: bool) -> tuple[Arrival, ...]:
    long = long and draw(st.sampled_from([False, False, False, True]))
    steps = st.one_of(st.just(0), st.integers(0, 30))
    adapters = st.sampled_from([None, *ADAPTERS] if draw(st.sampled_from([False, False, True])) else [None])
    return tuple(
        Arrival(draw(prompts(index, long)), draw(params(long)), draw(steps), draw(adapters))
        for index in range(draw(st.integers(2, most)))
    )


DISTURBANCES = st.builds(
    Disturbance,
    st.integers(0, 30),
    st.sampled_from(["abort", "preempt", "preempt", "pin", "unpin", "reset"]),
    st.integers(0, 5),
)


@st.composite
def scenarios(
    draw: st.DrawFn, families: Sequence[str], weights: Sequence[str], *, most: int = 6, long: bool = True
) -> Scenario:
    settings: dict[str, Any] = {
        "kv_cache_dtype": draw(st.sampled_from(["float32", "bfloat16", "int8"])),
        "block_size": draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 48, 64])),
        "max_num_batched_tokens": draw(st.one_of(st.integers(1, 20), st.sampled_from([33, 64, 300, 2048]))),
        "max_num_seqs": draw(st.integers(4, 16)),
        "watermark": draw(st.sampled_from([0.0, 0.05])),
        "max_bypass": draw(st.sampled_from([0, 2, 16])),
        "enable_prefix_caching": draw(st.sampled_from([True] * 5 + [False])),
        "cascade_attention": draw(st.sampled_from(["auto", "on", "on", "off"])),
        "max_pinned_share": draw(st.sampled_from([0.0, 0.3, 1.0])),
        "allocator": draw(st.sampled_from(["paged"] * 12 + ["contiguous-max", "contiguous-pow2", "contiguous-oracle"])),
    }
    return Scenario(
        family=draw(st.sampled_from(families)),
        weights=draw(st.sampled_from(weights)),
        settings=settings,
        roominess=draw(st.sampled_from([0.0, 0.1, 0.3, 1.0, 2.0])),
        stirred=draw(st.integers(0, 99)),
        arrivals=draw(arrivals(most, long)),
        disturbances=tuple(draw(st.lists(DISTURBANCES, max_size=5))),
        threads=draw(st.sampled_from([1, 1, 1, 1, 2])),
        isa=draw(st.sampled_from([0, 0, 0, 1, 2, 3])),
    )


def staged(family: str, weights: str, kv_cache_dtype: str, *, brief: bool = False) -> Scenario:
    """Written out, so that everything of note is sure to happen: long prompts in chunks, a full pool, hits, forks.

    `brief`: for a model of some size.
    """

    def params(temperature: float, n: int) -> SamplingParams:
        count = 4 if brief else 8
        return SamplingParams(
            n=n,
            temperature=temperature,
            frequency_penalty=1.5,
            logit_bias=FAVOURED,
            max_tokens=count,
            ignore_eos=True,
            logprobs=3,
            seed=n,
        )

    arrivals = (
        Arrival(Prompt(262, seed=0), params(1.0, 2 if brief else 3)),
        Arrival(Prompt(0, seed=1, base=0), params(0, 1), step=3),
        Arrival(Prompt(5, seed=2, base=0, kept=250), params(0.8, 2), step=5),
        Arrival(Prompt(3, seed=3, base=0, answered=True), params(0, 1), step=20),
        Arrival(Prompt(0, seed=4, base=3), params(1.0, 1), step=40),
        Arrival(Prompt(30, seed=5), params(1.0, 2), step=4),
        Arrival(Prompt(9, seed=6, base=0), SamplingParams(beam_width=3, max_tokens=6, logprobs=1), step=10),
    )
    settings = {
        "kv_cache_dtype": kv_cache_dtype,
        "block_size": 16,
        "max_num_batched_tokens": 120,
        "max_num_seqs": 8,
        "watermark": 0.0,
        "enable_prefix_caching": True,
        "cascade_attention": "on",
        "allocator": "paged",
    }
    return Scenario(
        family,
        weights,
        settings,
        roominess=0.1,
        stirred=1,
        arrivals=(arrivals[0], replace(arrivals[1], step=14)) if brief else arrivals,
        disturbances=(
            *(Disturbance(step, "preempt") for step in (4, 6, 7, 9, 12)),
            *(() if brief else (Disturbance(8, "abort", 5),)),
        ),
    )
