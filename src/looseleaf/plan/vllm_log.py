"""What vLLM's start-up lines mean."""

from __future__ import annotations

import math
from collections.abc import Iterator

from looseleaf.plan.hardware import GIB
from looseleaf.plan.log_figures import TOLERANCE, Check, Figures, Meaning


def vllm_meanings(log: Figures) -> Iterator[Meaning]:
    yield from log.told("device_gib", "device", "{:,.2f} GiB", "the device's memory, as the driver reports it")
    yield from log.told("utilization", "utilization", "{:.2f}", "the share of it that vLLM may use, for everything")
    yield from log.told("weights_gib", "weights", "{:,.2f} GiB", "the model, on this device")
    yield from log.told(
        "torch_peak_gib", "torch's peak", "{:,.2f} GiB", "weights and the largest step that was tried, together"
    )
    yield from log.told(
        "activations_gib", "activations", "{:,.2f} GiB", "the largest step's own tensors; grows with the token budget"
    )
    yield from log.told("other_gib", "outside torch", "{:,.2f} GiB", "the driver's context, NCCL, libraries")
    yield from log.told(
        "cache_gib", "KV cache", "{:,.2f} GiB", "what is left for keys and values, on each device: the pool"
    )
    yield from log.told(
        "graphs_gib", "CUDA graphs", "{:,.2f} GiB", "captured afterwards; older versions do not count it beforehand"
    )
    yield from log.told("blocks", "blocks", "{:,.0f}", f"of {log.get('block_size', 16):,.0f} token slots each")
    yield from log.told("blocks_override", "blocks, set by hand", "{:,.0f}", "instead of what fits")
    yield from log.told("tokens", "tokens", "{:,.0f}", _tokens_meaning(log))
    if log.has("concurrency", "concurrency_len"):
        yield Meaning(
            "concurrency",
            f"{log['concurrency']:,.2f}×",
            f"requests of {log['concurrency_len']:,.0f} tokens, the maximum length, that fit at once. A bound by "
            "memory alone, not a limit: shorter requests fit more often, and max_num_seqs caps them all",
            log.line("concurrency"),
        )
    yield from log.told(
        "attention_block",
        "attention block",
        "{:,.0f}",
        "tokens per block, enlarged until a block of attention takes as much as a recurrent state; also the unit in "
        "which prefixes are shared",
    )
    yield from log.told("state_padding_pct", "state padding", "{:,.2f} %", "added to each state to fill its block")


def _tokens_meaning(log: Figures) -> str:
    if not layers_differ(log):
        return "slots of the whole pool, shared by all requests; not the longest request"
    if _concurrency_agrees(log):
        return "that fit in requests of the maximum length (concurrency × length): no number of slots"
    return "blocks × their size / kinds of layers, which keep differently: neither slots nor what requests can hold"


def layers_differ(log: Figures) -> bool:
    """Whether layers keep differently (windows, states), as far as the log shows."""
    if "attention_block" in log or not _concurrency_agrees(log):
        return True
    if not log.has("tokens", "blocks"):
        return False
    slots = log["blocks"] * log.get("block_size", 16)
    return not math.isclose(slots, log["tokens"], rel_tol=TOLERANCE)


def _concurrency_agrees(log: Figures) -> bool:
    """Whether tokens / length is the concurrency; also where the log does not tell."""
    if not (log.has("tokens", "concurrency") and log.positive("concurrency_len")):
        return True
    expected = log["tokens"] / log["concurrency_len"]
    return abs(expected - log["concurrency"]) <= max(0.0051, TOLERANCE * expected)


def vllm_checks(log: Figures) -> Iterator[Check]:
    if log.has("tokens") and log.positive("blocks"):
        size = log["tokens"] / log["blocks"]
        whole = size == int(size)
        yield Check(
            "tokens and blocks",
            whole,
            f"{log['tokens']:,.0f} tokens / {log['blocks']:,.0f} blocks = {size:,.2f} tokens per block"
            + ("" if whole else ": layers keep differently, or the figures are of two runs"),
        )
    if log.has("concurrency") and log.positive("concurrency_len") and ("tokens" in log or "blocks" in log):
        tokens = log["tokens"] if "tokens" in log else log["blocks"] * log.get("block_size", 16)
        expected = tokens / log["concurrency_len"]
        agrees = abs(expected - log["concurrency"]) <= max(0.0051, TOLERANCE * expected)
        says = f"{tokens:,.0f} tokens / {log['concurrency_len']:,.0f} = {expected:,.2f}×"
        says += f", printed {log['concurrency']:,.2f}×"
        if not agrees:
            says += (
                ": windows or states make a request cheaper than its length, so requests, not tokens, are what counts"
                if log["concurrency"] > expected
                else ": the figures are of two runs, or blocks have another size"
            )
        yield Check("tokens and concurrency", agrees, says)
    if log.has("device_gib", "utilization", "weights_gib", "cache_gib"):
        yield _sum(log)


def _sum(log: Figures) -> Check:
    usable = log["device_gib"] * log["utilization"]
    if "torch_peak_gib" in log:
        used = log["torch_peak_gib"]
        terms = f"torch's peak {used:,.2f}"
    else:
        used = log["weights_gib"] + log.get("activations_gib", 0)
        terms = f"weights {log['weights_gib']:,.2f}"
        terms += f" − activations {log['activations_gib']:,.2f}" if "activations_gib" in log else ""
    if "other_gib" in log:
        used += log["other_gib"]
        terms += f" − outside torch {log['other_gib']:,.2f}"
    rest = usable - used
    complete = "activations_gib" in log or "torch_peak_gib" in log
    says = f"{log['device_gib']:,.2f} × {log['utilization']:.2f} − {terms} = {rest:,.2f} GiB"
    says += f", cache {log['cache_gib']:,.2f}"
    if not complete:
        says += f": {rest - log['cache_gib']:,.2f} GiB for activations, graphs and the driver"
    agrees = abs(rest - log["cache_gib"]) <= 0.05 if complete else rest >= log["cache_gib"] - 0.05
    return Check("the memory adds up", agrees, says)


def vllm_verdict(log: Figures) -> Iterator[str]:
    if log.positive("refused_len", "refused_tokens"):
        share = log["refused_tokens"] / log["refused_len"]
        yield (
            f"REFUSED: one request of {log['refused_len']:,.0f} tokens needs more slots than the "
            f"{log['refused_tokens']:,.0f} there are ({share:,.2f}×). Set max_model_len to at most "
            f"{log['refused_tokens']:,.0f}, or free memory for {1 / share:,.2f} times the pool: a higher "
            "gpu_memory_utilization, fewer max_num_batched_tokens, an fp8 cache, smaller weights, more devices."
        )
    if log.has("available_gib") and log.positive("refused_len", "needed_gib"):
        per_token = log["needed_gib"] * GIB / log["refused_len"]
        estimate = f" vLLM estimates {log['estimated_len']:,.0f} tokens would fit." if "estimated_len" in log else ""
        yield (
            f"REFUSED: one request of {log['refused_len']:,.0f} tokens needs {log['needed_gib']:,.2f} GiB "
            f"({per_token:,.0f} bytes per token), and {log['available_gib']:,.2f} GiB are left: "
            f"{log['available_gib'] / log['needed_gib']:,.2f}×.{estimate} Lower max_model_len, or free "
            f"{log['needed_gib'] - log['available_gib']:,.2f} GiB: a higher gpu_memory_utilization, fewer "
            "max_num_batched_tokens, an fp8 cache, smaller weights, more devices."
        )
    if "no_memory" in log or log.get("blocks", 1) == 0:
        yield (
            "REFUSED: weights and activations took all that gpu_memory_utilization allows; nothing is left for keys "
            "and values. Raise it, or lower max_num_batched_tokens, or take smaller weights or more devices."
        )
    if log.has("free_gib", "desired_gib"):
        yield (
            f"REFUSED: {log['free_gib']:,.2f} GiB of the device are free, and vLLM was told to use "
            f"{log['desired_gib']:,.2f} GiB. Something else holds the rest: end it, or lower gpu_memory_utilization."
        )
    if log.has("concurrency", "concurrency_len") and not log.has("refused_len"):
        if log["concurrency"] < 1:
            yield (
                f"Less than one request of {log['concurrency_len']:,.0f} tokens fits: vLLM refuses to start like this."
            )
        elif log["concurrency"] < 2:
            yield "Only one request of the maximum length fits at a time: a second one waits, or preempts."
