"""What would have to change for one request of the maximum length to fit, from the cheapest change on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from looseleaf.plan.capacity import Capacity
from looseleaf.plan.errors import InvalidPlan
from looseleaf.plan.hardware import GIB, Hardware, format_size, known_hardware

HIGHEST_UTILIZATION = 0.95
_FEWEST_STEP_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Change:
    """One change that suffices alone: the setting, what it costs, and the requests at once that it gives."""

    kind: str
    setting: str
    price: str
    concurrency: float


@dataclass(frozen=True, slots=True)
class _Candidate:
    kind: str
    setting: str
    price: str
    changed: dict[str, Any]


def changes_that_fit(capacity: Capacity) -> list[Change]:
    """The least change of each kind that makes it fit alone; cheapest kind first.

    In this order: settings that cost speed or slack, accuracy of the cache, length, accuracy of the weights, devices.
    """
    found: dict[str, Change] = {}
    for each in _candidates(capacity):
        if each.kind in found:
            continue
        try:
            other = capacity.with_settings(**each.changed)
            if other.fits:
                concurrency = other.concurrency(other.max_model_len)
                found[each.kind] = Change(each.kind, each.setting, each.price, concurrency)
        except InvalidPlan:
            continue  # makes no sense with this model: heads that do not divide, a format it cannot have
    return list(found.values())


def _candidates(capacity: Capacity) -> Iterator[_Candidate]:
    yield from _settings(capacity)
    yield from _smaller_cache(capacity)
    if capacity.derived:
        if capacity.settings.weight_memory is None:
            for name in ("fp8", "int4"):
                yield _Candidate("weights", f"weights in {name}", "accuracy", {"quantization": name})
        yield from _more_devices(capacity)


def _settings(capacity: Capacity) -> Iterator[_Candidate]:
    settings, layout = capacity.settings, capacity.layout
    hardware = settings.hardware
    if capacity.derived and hardware is not None and hardware.memory_bytes is not None:
        wanted = settings.memory_utilization + (capacity.missing_bytes + layout.block_bytes) / hardware.memory_bytes
        share = math.ceil(wanted * 100) / 100
        if share <= HIGHEST_UTILIZATION:
            price = "room for what is not counted"
            yield _Candidate("share", f"memory utilization {share:.2f}", price, {"memory_utilization": share})
    tokens = settings.max_num_batched_tokens // 2
    while tokens >= _FEWEST_STEP_TOKENS and (capacity.derived or not layout.uniform):
        price = "speed of long prompts"
        yield _Candidate("step", f"{tokens:,} tokens per step", price, {"max_num_batched_tokens": tokens})
        tokens //= 2


def _smaller_cache(capacity: Capacity) -> Iterator[_Candidate]:
    settings, layout = capacity.settings, capacity.layout
    if layout.arithmetic.kv_format.element > 1:
        on_processor = settings.hardware is not None and settings.hardware.kind == "cpu"
        dtype = "int8" if on_processor else "fp8"
        changed: dict[str, Any] = {"kv_cache_dtype": dtype}
        if settings.num_blocks is not None:  # the same bytes, in smaller blocks
            changed |= {"num_blocks": None, "kv_cache_memory": capacity.pool_bytes}
        yield _Candidate("cache", f"keys and values in {dtype}", "some accuracy", changed)
    longest = capacity.longest_context // layout.block_size * layout.block_size
    if longest:
        yield _Candidate("length", f"max_model_len {longest:,}", "longer requests", {"max_model_len": longest})


def _more_devices(capacity: Capacity) -> Iterator[_Candidate]:
    settings, hardware = capacity.settings, capacity.settings.hardware
    for ranks in (2, 4, 8, 16):
        if ranks > settings.tensor_parallel_size:
            changed = {"tensor_parallel_size": ranks}
            yield _Candidate("ranks", f"tensor parallel over {ranks}", f"{ranks} devices", changed)
    if hardware is None or hardware.memory_bytes is None:
        return
    for bigger in _bigger_devices(hardware, capacity):
        name = f"a device such as {bigger.name}" if bigger.kind == "gpu" else "a larger machine"
        yield _Candidate("device", name, f"{format_size(bigger.memory_bytes or 0)} of memory", {"hardware": bigger})


def _bigger_devices(hardware: Hardware, capacity: Capacity) -> list[Hardware]:
    """Known GPUs with more memory, the smallest first; for other machines, the same with as much as it takes."""
    assert hardware.memory_bytes is not None
    if hardware.kind == "gpu":
        gpus = [each for each in known_hardware().values() if each.kind == "gpu" and each.memory_bytes]
        bigger = [each for each in gpus if (each.memory_bytes or 0) > hardware.memory_bytes]
        return sorted(bigger, key=lambda each: each.memory_bytes or 0)
    missing = (capacity.missing_bytes + capacity.layout.block_bytes) / capacity.settings.memory_utilization
    gib = math.ceil((hardware.memory_bytes + missing) / GIB)
    return [replace(hardware, memory_bytes=gib * GIB)]
