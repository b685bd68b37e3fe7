"""The engine's snapshot as metrics: blocks, tokens, queue, preemptions, prefix cache, time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from looseleaf.server.interface import ClientState, EngineStats, ModelInfo

_WAITING_REASONS = ("blocks", "seats", "budget")
_PHASES = ("schedule", "run", "send")
_STATES: tuple[ClientState, ...] = ("starting", "ready", "restarting", "stopped")


def engine_families(
    stats: EngineStats,
    info: ModelInfo | None,
    prefix: str,
    labels: Mapping[str, str],
    *,
    restarts: int,
    state: ClientState,
) -> Iterator[Metric]:
    """`prefix` is for what vLLM has too. `stats`: with the counts of all processes so far. `info`: None before there
    was one."""
    return _Families(stats, info, prefix, labels).all(restarts, state)


class _Families:
    def __init__(self, stats: EngineStats, info: ModelInfo | None, prefix: str, labels: Mapping[str, str]) -> None:
        self._stats = stats
        self._info = info
        self._prefix = prefix
        self._names, self._values = list(labels), list(labels.values())

    def all(self, restarts: int, state: ClientState) -> Iterator[Metric]:
        yield from self._as_in_vllm()
        yield from self._memory()
        yield from self._work()
        yield self._counter("looseleaf_engine_restarts", "Engine processes started to replace one that died.", restarts)
        yield self._by(
            "looseleaf_engine_state",
            "1 for the state the engine is in.",
            "state",
            {s: int(s == state) for s in _STATES},
        )

    def _as_in_vllm(self) -> Iterator[Metric]:
        stats, prefix = self._stats, self._prefix
        yield self._gauge(prefix + "num_requests_running", "Sequences that hold blocks now.", stats.num_running)
        yield self._gauge(prefix + "num_requests_waiting", "Sequences in the queue now.", stats.num_waiting)
        yield self._by(
            prefix + "num_requests_waiting_by_reason",
            "Sequences in the queue now: for capacity, or put off for another reason.",
            "reason",
            {"capacity": stats.num_waiting, "deferred": 0},
        )
        held = stats.total_blocks - stats.free_blocks
        yield self._gauge(
            prefix + "kv_cache_usage_perc",
            "Share of the KV cache's blocks that sequences hold; 1 is all of them.",
            held / stats.total_blocks if stats.total_blocks else 0.0,
        )
        for name, documentation, value in (
            (
                "num_preemptions",
                "Sequences that lost their blocks to others and went back to the queue.",
                "preemptions",
            ),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", "prefix_query_tokens"),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", "prefix_hit_tokens"),
        ):
            yield self._counter(prefix + name, documentation, getattr(stats, value))
        if (info := self._info) is not None:
            known = {
                "block_size": str(info.block_size),
                "num_gpu_blocks": str(info.num_blocks),  # dashboards read it under this name, whatever the device
                "cache_dtype": info.kv_cache_dtype,
                "enable_prefix_caching": str(info.prefix_caching),
            }
            config = GaugeMetricFamily(
                prefix + "cache_config_info", "What the KV cache is, as labels.", labels=[*self._names, *known]
            )
            config.add_metric([*self._values, *known.values()], 1)
            yield config

    def _memory(self) -> Iterator[Metric]:
        stats = self._stats
        cached, pinned = stats.cached_blocks, stats.pinned_blocks
        yield self._by(
            "looseleaf_kv_blocks",
            "Blocks of the KV cache: held by sequences, cached (evictable), pinned (cached, not evictable), or free.",
            "state",
            {
                "active": stats.total_blocks - stats.free_blocks,
                "cached": max(cached - pinned, 0),
                "pinned": min(pinned, cached),
                "free": stats.free_blocks - cached,
            },
        )
        used, reserved, wasted = stats.token_slots_used, stats.token_slots_reserved, stats.token_slots_wasted
        yield self._by(
            "looseleaf_kv_token_slots",
            "Token slots of the KV cache: with a token's key and value, reserved for one, wasted (held, never to be"
            " used), or free.",
            "state",
            {
                "used": used,
                "reserved": reserved,
                "wasted": wasted,
                "free": stats.total_blocks * stats.block_size - used - reserved - wasted,
            },
        )
        yield self._gauge(
            "looseleaf_kv_token_slots_saved_by_sharing",
            "Slots that would be needed on top if no block were shared.",
            stats.token_slots_saved_by_sharing,
        )
        if self._info is not None:
            yield self._gauge("looseleaf_kv_cache_bytes", "Memory of the KV cache.", self._info.kv_cache_bytes)
        yield self._counter(
            "looseleaf_kv_blocks_copied", "Blocks copied before a write, because they were shared.", stats.copied_blocks
        )
        yield self._counter(
            "looseleaf_kv_blocks_evicted", "Blocks whose cached content was given up for a sequence.", stats.evictions
        )

    def _work(self) -> Iterator[Metric]:
        stats = self._stats
        yield self._by(
            "looseleaf_requests_waiting",
            "Sequences in the queue now, by what its head lacks: blocks, a seat in the batch, or token budget.",
            "reason",
            {reason: stats.num_waiting * (stats.waiting_reason == reason) for reason in _WAITING_REASONS},
        )
        yield self._counted_by(
            "looseleaf_preemptions", "Preemptions by kind.", "kind", {"recompute": stats.preemptions}
        )
        yield self._counted_by(
            "looseleaf_preempted_tokens",
            "Tokens whose keys and values preemptions gave up.",
            "kind",
            {"recompute": stats.preempted_tokens},
        )
        yield self._counted_by(
            "looseleaf_computed_tokens",
            "Tokens that the engine computed, again after preemptions and restarts too.",
            "phase",
            {"prefill": stats.prompt_tokens, "decode": stats.generated_tokens},
        )
        yield self._counted_by(
            "looseleaf_memory_audits",
            "Times that the KV cache's books were recomputed from scratch, and whether they were right.",
            "result",
            {"clean": stats.clean_audits, "failed": stats.failed_audits},
        )
        yield self._counter("looseleaf_engine_steps", "Steps run.", stats.step)
        yield self._counted_by(
            "looseleaf_engine_step_seconds",
            "Time in steps: deciding what runs, running the model and choosing tokens, and telling the front.",
            "phase",
            {phase: stats.step_seconds.get(phase, 0.0) for phase in _PHASES},
        )

    def _gauge(self, name: str, documentation: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def _counter(self, name: str, documentation: str, value: float) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=self._names)
        family.add_metric(self._values, value)
        return family

    def _by(self, name: str, documentation: str, label: str, values: Mapping[str, float]) -> Metric:
        family = GaugeMetricFamily(name, documentation, labels=[*self._names, label])
        for key, value in values.items():
            family.add_metric([*self._values, key], value)
        return family

    def _counted_by(self, name: str, documentation: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(name, documentation, labels=[*self._names, label])
        for key, value in values.items():
            family.add_metric([*self._values, key], value)
        return family
