"""What SGLang's start-up lines mean."""

from __future__ import annotations

from collections.abc import Iterator

from looseleaf.plan.log_figures import Check, Figures, Meaning


def sglang_meanings(log: Figures) -> Iterator[Meaning]:
    yield from log.told("before_weights_gib", "free at first", "{:,.2f} GiB", "before the weights are loaded")
    yield from log.told("weights_gib", "weights", "{:,.2f} GiB", "what loading them took, on this device")
    yield from log.told(
        "after_weights_gib", "free after the weights", "{:,.2f} GiB", "of this, the cache gets its share"
    )
    yield from log.told(
        "mem_fraction",
        "mem_fraction_static",
        "{:.3f}",
        "the share of the memory for weights and cache together; the rest is for activations and graphs",
    )
    tokens = "max_total_tokens" if "max_total_tokens" in log else "tokens"
    yield from log.told(
        tokens, "tokens", "{:,.0f}", "slots of the whole pool, shared by all requests and by the prefix cache"
    )
    if log.has("k_gib", "v_gib"):
        both = log["k_gib"] + log["v_gib"]
        yield Meaning(
            "KV cache",
            f"{both:,.2f} GiB",
            f"keys {log['k_gib']:,.2f} and values {log['v_gib']:,.2f}, on this device",
            log.line("k_gib"),
        )
    yield from log.told("kv_gib", "KV cache", "{:,.2f} GiB", "latents, or keys and values together, on this device")
    yield from log.told("state_gib", "recurrent states", "{:,.2f} GiB", "whatever the lengths, by request")
    yield from log.told("conv_gib", "convolution states", "{:,.2f} GiB", "whatever the lengths, by request")
    yield from log.told("state_slots", "state slots", "{:,.0f}", "requests and cached prefixes that can have a state")
    yield from log.told("after_pool_gib", "free after the pool", "{:,.2f} GiB", "for graphs and activations")
    yield from log.told("graphs_gib", "CUDA graphs", "{:,.2f} GiB", "captured after the pool")
    yield from log.told(
        "available_gib", "free at the end", "{:,.2f} GiB", "left for activations, per device: not part of the cache"
    )
    yield from log.told("max_running", "max_running_requests", "{:,.0f}", "most requests at once, whatever fits")
    yield from log.told("context_len", "context_len", "{:,.0f}", "the longest request, prompt and answer")
    yield from log.told("chunk", "chunked_prefill_size", "{:,.0f}", "tokens of prompts per step")


def sglang_checks(log: Figures) -> Iterator[Check]:
    if log.has("tokens", "max_total_tokens"):
        agrees = log["tokens"] == log["max_total_tokens"]
        yield Check(
            "tokens, said twice",
            agrees,
            f"{log['tokens']:,.0f} allocated, {log['max_total_tokens']:,.0f} announced"
            + ("" if agrees else ": capped by a setting, rounded to pages, or of two runs"),
        )
    if log.has("before_weights_gib", "after_weights_gib", "weights_gib"):
        difference = log["before_weights_gib"] - log["after_weights_gib"]
        yield Check(
            "weights and free memory",
            abs(difference - log["weights_gib"]) <= 0.05,
            f"{log['before_weights_gib']:,.2f} − {log['after_weights_gib']:,.2f} = {difference:,.2f} GiB, printed "
            f"{log['weights_gib']:,.2f}",
        )
    cache = log["kv_gib"] if "kv_gib" in log else log["k_gib"] + log["v_gib"] if log.has("k_gib", "v_gib") else None
    if cache is not None and log.has("after_weights_gib", "after_pool_gib"):
        states = log.get("state_gib", 0) + log.get("conv_gib", 0)
        difference = log["after_weights_gib"] - log["after_pool_gib"]
        yield Check(
            "cache and free memory",
            abs(difference - cache - states) <= max(0.15, 0.02 * difference),
            f"{log['after_weights_gib']:,.2f} − {log['after_pool_gib']:,.2f} = {difference:,.2f} GiB, cache "
            f"{cache + states:,.2f}",
        )


def sglang_verdict(log: Figures) -> Iterator[str]:
    if "no_memory" in log:
        yield "REFUSED: mem_fraction_static leaves nothing for keys and values after the weights. Raise it."
    tokens = log["max_total_tokens"] if "max_total_tokens" in log else log.get("tokens", 0)
    if tokens and log.positive("context_len"):
        length = log["context_len"]
        if tokens < length:
            yield (
                f"A request of context_len, {length:,.0f} tokens, does not fit into the {tokens:,.0f} slots "
                f"({tokens / length:,.2f}×): it is accepted at start, and refused or cut when it comes."
            )
        else:
            yield f"{tokens / length:,.2f} requests of context_len, {length:,.0f} tokens, fit at once."
