"""Counts and times of a running engine, for the snapshots that the front shows as metrics."""

from __future__ import annotations

import time

from looseleaf.engine.engine import Engine
from looseleaf.scheduler.interface import StepPlan
from looseleaf.server.interface import EngineStats, ModelInfo

PERIOD = 0.1
"""Seconds between snapshots while the engine runs."""


class EngineMeter:
    """Adds up what steps do; `stats` looks at the rest."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._steps = self._copied = self._prompt_tokens = self._generated = 0
        self._seconds = {"schedule": 0.0, "run": 0.0, "send": 0.0, "step": 0.0}
        self._began = self._planned = 0.0
        self._due = 0.0
        self._clean_audits = self._failed_audits = 0

    @property
    def num_steps(self) -> int:
        """Steps run."""
        return self._steps

    def begin(self) -> None:
        self._began = self._planned = time.perf_counter()

    def planned(self, plan: StepPlan) -> None:
        self._planned = time.perf_counter()
        self._copied += plan.copies.source.size
        self._prompt_tokens += int(plan.num_scheduled[plan.num_decodes :].sum())

    def ran(self, num_generated: int) -> None:
        now = time.perf_counter()
        self._steps += 1
        self._generated += num_generated
        self._seconds["schedule"] += self._planned - self._began
        self._seconds["run"] += now - self._planned
        self._seconds["step"] += now - self._began

    def sent(self, seconds: float) -> None:
        self._seconds["send"] += seconds

    def audited(self, clean: bool) -> None:
        self._clean_audits += clean
        self._failed_audits += not clean

    def due_stats(self) -> EngineStats | None:
        """A snapshot, if it is time for one or the engine has just become idle."""
        now = time.perf_counter()
        if now < self._due and self._engine.has_unfinished():
            return None
        self._due = now + PERIOD
        return self.stats()

    def stats(self) -> EngineStats:
        engine = self._engine
        usage, scheduler = engine.memory.usage(), engine.scheduler
        cache = engine.prefix_cache_counts()
        size = engine.pool.block_size
        return EngineStats(
            step=self._steps,
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            waiting_reason=scheduler.waiting_reason,
            block_size=size,
            total_blocks=engine.memory.num_blocks,
            free_blocks=usage.free // size,
            cached_blocks=usage.cached // size,
            pinned_blocks=cache.pinned_blocks if cache else 0,
            token_slots_used=usage.token_states,
            token_slots_reserved=usage.reserved,
            token_slots_wasted=usage.internal_fragmentation,
            token_slots_saved_by_sharing=usage.saved_by_sharing,
            preemptions=scheduler.num_preemptions,
            preempted_tokens=scheduler.num_preempted_tokens,
            recomputed_tokens=scheduler.num_recomputed_tokens,
            prefix_query_tokens=cache.query_tokens if cache else 0,
            prefix_hit_tokens=cache.hit_tokens if cache else 0,
            evictions=cache.evictions if cache else 0,
            copied_blocks=self._copied,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated,
            clean_audits=self._clean_audits,
            failed_audits=self._failed_audits,
            step_seconds=dict(self._seconds),
        )


def describe(engine: Engine, model_path: str) -> ModelInfo:
    """What the front must know of it."""
    pool = engine.pool
    return ModelInfo(
        vocab_size=engine.vocab_size,
        eos_token_ids=list(engine.eos_token_ids),
        max_model_len=pool.max_model_len,
        largest_request=engine.scheduler.largest_request,
        block_size=pool.block_size,
        num_blocks=pool.num_blocks,
        max_num_seqs=engine.config.max_num_seqs,
        adapters=list(engine.model.adapters),
        prefix_caching=engine.prefix_cache_counts() is not None,
        model_path=model_path,
        dtype=str(engine.config.torch_dtype).removeprefix("torch."),
        kv_cache_dtype=str(pool.kv_dtype).removeprefix("torch."),
        kv_cache_bytes=pool.nbytes,
    )
