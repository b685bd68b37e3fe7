"""Engine settings, and the sizes that people write for memory."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import torch

from looseleaf.engine.adapter_names import check_lora
from looseleaf.engine.sampling_params import is_integer
from looseleaf.errors import ConfigurationError
from looseleaf.kernels import native
from looseleaf.kernels.interface import Cascade
from looseleaf.memory.factory import check_allocator
from looseleaf.scheduler.interface import PolicyName, SchedulerConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
KV_DTYPES = {**DTYPES, "int8": torch.int8}
QUANTIZATIONS = ("none", "int8", "gguf")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:(%)|((?:[KMGT]I?)?)B?)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How one engine is set up. The defaults suit a small CPU server."""

    dtype: str = "auto"
    """"float32", "bfloat16", or "auto": bfloat16 where the processor multiplies it natively, else float32."""
    quantization: str = "none"
    """Weights: "none" keeps them as they are published, "int8" rounds the matrices to 8 bits when they are loaded,
    "gguf" keeps the 4- and 8-bit blocks of a GGUF file as they are instead of widening them."""
    lora: Mapping[str, str | Path] = field(default_factory=dict)
    """LoRA adapters that requests can ask for: by name, the folder that peft saved."""
    kv_cache_dtype: str = "auto"
    """"float32", "bfloat16", "int8", or "auto": that of the model. "int8" holds about twice the tokens of bfloat16."""
    kv_cache_memory: float | str = "10%"
    """Bytes for keys and values: a number, a size ("2GiB", "800MB"), or a share of the free memory ("10%")."""
    lock_memory: bool = False
    """Keep keys and values in physical memory, never swapped out (mlock); an error where that is not allowed."""
    block_size: int = 16
    """Token slots per block."""
    allocator: str = "paged"
    """One of `looseleaf.memory.ALLOCATORS`: "paged", or a contiguous one to compare it with."""
    enable_prefix_caching: bool = True
    """Keep the keys and values of ended requests while nobody needs the room, and share them with requests that begin
    with the same tokens. (Paged memory only.)"""
    cascade_attention: Cascade = "auto"
    """Whether blocks that sequences share are read once for all of them: "auto" where that is faster, "on" or "off".
    The answers are the same."""
    max_pinned_share: float = 0.25
    """Share of the pool that pinned prefixes may keep from eviction. 0 to 1."""
    max_model_len: int | None = None
    """Longest sequence in tokens; None: what the model allows and the pool holds."""
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    watermark: float = 0.01
    max_bypass: int = 16
    scheduling_policy: PolicyName = "fcfs"
    """Who goes first: "fcfs" (first come first served), "priority" (the smaller `priority` of a request), or "fair"
    (tenants get shares by their weights)."""
    priority_ageing_seconds: float = 10.0
    """Priority: who waits this long counts as one level more urgent, so that nobody starves."""
    seed: int = 0
    """From which the seeds of requests without one are derived, in order of arrival."""

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", *DTYPES):
            raise ConfigurationError(f"dtype {self.dtype!r} is unknown.", hint=f"Use auto, {', '.join(DTYPES)}.")
        if self.kv_cache_dtype not in ("auto", *KV_DTYPES):
            raise ConfigurationError(
                f"kv_cache_dtype {self.kv_cache_dtype!r} is unknown.", hint=f"Use auto, {', '.join(KV_DTYPES)}."
            )
        if self.quantization not in QUANTIZATIONS:
            raise ConfigurationError(
                f"quantization {self.quantization!r} is unknown.", hint=f"Use {', '.join(QUANTIZATIONS)}."
            )
        if self.cascade_attention not in get_args(Cascade):
            raise ConfigurationError(
                f"cascade_attention {self.cascade_attention!r} is unknown.",
                hint=f"Use {', '.join(get_args(Cascade))}.",
            )
        for name in ("block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_bypass", "seed"):
            value = getattr(self, name)
            if not is_integer(value) and not (value is None and name == "max_model_len"):
                raise ConfigurationError(f"{name} is {value!r} but must be an integer.")
        for name in ("lock_memory", "enable_prefix_caching"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"{name} is {getattr(self, name)!r} but must be true or false.")
        if not isinstance(self.max_pinned_share, int | float) or not 0 <= self.max_pinned_share <= 1:
            raise ConfigurationError(f"max_pinned_share is {self.max_pinned_share!r} but must be between 0 and 1.")
        if not isinstance(self.priority_ageing_seconds, int | float):
            raise ConfigurationError(
                f"priority_ageing_seconds is {self.priority_ageing_seconds!r} but must be a number."
            )
        if self.block_size < 1:
            raise ConfigurationError(f"block_size is {self.block_size} but must be at least 1 token.")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigurationError(
                f"max_model_len is {self.max_model_len} but must be at least 2: a prompt token and an answer token."
            )
        check_lora(self.lora)
        check_allocator(self.allocator)
        parse_memory(self.kv_cache_memory, available=sys.maxsize)
        self.scheduler_config(self.max_model_len or 2)  # its own checks, before a model is loaded in vain

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> EngineConfig:
        """From a mapping; a setting that does not exist is named, with the closest that does."""
        known = [field.name for field in fields(cls)]
        for name in settings:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                raise ConfigurationError(
                    f"There is no engine setting {name!r}.",
                    hint=f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(known)}.",
                )
        return cls(**settings)

    def scheduler_config(self, max_model_len: int) -> SchedulerConfig:
        return SchedulerConfig(
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            max_model_len=max_model_len,
            watermark=self.watermark,
            max_bypass=self.max_bypass,
            policy=self.scheduling_policy,
            priority_ageing_seconds=self.priority_ageing_seconds,
        )

    @property
    def torch_dtype(self) -> torch.dtype:
        if self.dtype != "auto":
            return DTYPES[self.dtype]
        fast_bfloat16 = {"avx512_bf16", "amx_bf16"} & set(native.cpu_features())
        return torch.bfloat16 if fast_bfloat16 else torch.float32

    @property
    def torch_kv_dtype(self) -> torch.dtype:
        return self.torch_dtype if self.kv_cache_dtype == "auto" else KV_DTYPES[self.kv_cache_dtype]


def parse_memory(size: float | str, *, available: int) -> int:
    """Bytes meant by a number, "2GiB", "800MB" or a share such as "25%" of `available` bytes."""
    if not isinstance(size, str):
        if not is_integer(size) and not (isinstance(size, float) and math.isfinite(size)):
            raise ConfigurationError(f"{size!r} is no memory size.", hint="Write for example 2GiB, 800MB or 25%.")
        amount = float(size)
    else:
        match = _SIZE.fullmatch(size)
        if match is None:
            raise ConfigurationError(f"{size!r} is no memory size.", hint="Write for example 2GiB, 800MB or 25%.")
        number, percent, unit = match.groups()
        if percent and not 0 < float(number) <= 100:
            raise ConfigurationError(f"{size!r} is no share of the free memory.", hint="Write 1% to 100%.")
        amount = float(number) * (available / 100 if percent else _UNITS[unit.upper()])
    if amount < 1:
        raise ConfigurationError(f"A memory budget of {size} bytes holds nothing.", hint="Write for example 2GiB.")
    return int(amount)


def format_bytes(size: float) -> str:
    """1536 → "1.5 KiB"."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:,.0f} bytes" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
