"""What the start-up lines of vLLM and SGLang say, and whether their numbers agree with one another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from looseleaf.plan.capacity import Capacity
from looseleaf.plan.errors import UnreadableLog
from looseleaf.plan.hardware import GIB, format_size
from looseleaf.plan.log_figures import Check, Figures, Meaning
from looseleaf.plan.log_lines import Engine, read_lines
from looseleaf.plan.sglang_log import sglang_checks, sglang_meanings, sglang_verdict
from looseleaf.plan.vllm_log import layers_differ, vllm_checks, vllm_meanings, vllm_verdict


@dataclass(slots=True)
class Explanation:
    engine: Engine
    version: str
    meanings: list[Meaning] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    verdict: list[str] = field(default_factory=list)
    """What it comes to, and what to do; the last word on a log that ends in an error."""


def explain_log(lines: Iterable[str], capacity: Capacity | None = None) -> Explanation:
    """What the log says; with a plan of the same model, whether its bytes per token fit too.

    Raises `UnreadableLog` if no line of it is known.
    """
    engine, found = read_lines(lines)
    if engine is None or not set(found) - _SETTINGS_ONLY:
        raise UnreadableLog(
            "No start-up line about memory of vLLM or SGLang was found.",
            hint="Give the log from the engine's start, such as the output of `vllm serve` up to its first request.",
        )
    version = str(found["version"].value) if "version" in found else ""
    explanation = Explanation(engine, version)
    figures = Figures(found)
    explanation.meanings = list(vllm_meanings(figures) if engine == "vLLM" else sglang_meanings(figures))
    checks = vllm_checks(figures) if engine == "vLLM" else sglang_checks(figures)
    explanation.checks = [*checks, *_model_checks(figures, capacity)]
    explanation.verdict = list(vllm_verdict(figures) if engine == "vLLM" else sglang_verdict(figures))
    return explanation


_SETTINGS_ONLY = {
    "version",
    "ranks",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "page_size",
    "utilization",
}


def _model_checks(log: Figures, capacity: Capacity | None) -> Iterator[Check]:
    """The log's bytes per token, and against the model's."""
    tokens = log["max_total_tokens"] if "max_total_tokens" in log else log.get("tokens", 0)
    if not tokens and "blocks" in log:
        tokens = log["blocks"] * log.get("block_size", 16)
    cache = log.get("cache_gib", log.get("kv_gib", log.get("k_gib", 0) + log.get("v_gib", 0)))
    if not tokens or not cache:
        return
    per_token = cache * GIB / tokens
    if capacity is None and layers_differ(log):
        return
    if capacity is None:
        yield Check(
            "bytes per token", True, f"{cache:,.2f} GiB / {tokens:,.0f} = about {per_token:,.0f} bytes per token"
        )
        return
    layout = capacity.layout
    if not layout.uniform:
        length = int(log.get("concurrency_len", 0)) or capacity.max_model_len
        fits = cache * GIB / layout.request_bytes(length)
        stated = log.get("concurrency", 0)
        agrees = not stated or math.isclose(fits, stated, rel_tol=0.05)
        said = f", printed {stated:,.2f}×" if stated else ""
        yield Check(
            f"requests of {capacity.shape.name}",
            agrees,
            f"{format_size(cache * GIB)} hold {fits:,.2f} of {length:,} tokens{said}",
        )
        return
    # More may be left than is used: whole blocks, and as many on every rank as the one with the least memory has.
    agrees = 0.99 <= per_token / layout.bytes_per_token <= 1.03
    yield Check(
        f"bytes per token of {capacity.shape.name}",
        agrees,
        f"{cache:,.2f} GiB / {tokens:,.0f} = {per_token:,.0f}, the model's {layout.bytes_per_token:,}"
        + ("" if agrees else f" ({per_token / layout.bytes_per_token:,.2f}×): another model, dtype or number of ranks"),
    )
