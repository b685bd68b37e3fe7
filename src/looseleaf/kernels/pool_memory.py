"""Memory for what is allocated once and read all the time: the KV pool, packed weights."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from looseleaf.errors import LooseleafError
from looseleaf.kernels import native, numa
from looseleaf.kernels.system_memory import available_memory, lock_limit

_MIB = 1 << 20
_RANGE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")


class PoolAllocationFailed(LooseleafError):
    """There is not enough memory for the pool. Attributes: `needed` and `available` bytes."""

    def __init__(self, needed: int, available: int, reason: str) -> None:
        super().__init__(
            f"{needed / _MIB:,.1f} MiB of memory were asked for and {available / _MIB:,.1f} MiB are available{reason}.",
            hint="Ask for less, or end other programs.",
        )
        self.needed = needed
        self.available = available


class MemoryNotLocked(LooseleafError):
    """The pool cannot be locked in physical memory. Attributes: `needed` and `limit` bytes (None: no limit)."""

    def __init__(self, needed: int, limit: int | None, reason: str) -> None:
        allowed = "has no limit on it" if limit is None else f"may lock {limit / _MIB:,.1f} MiB (RLIMIT_MEMLOCK)"
        super().__init__(
            f"{needed / _MIB:,.1f} MiB of memory were to be locked, but this process {allowed}: {reason}.",
            hint="Raise the limit (ulimit -l, LimitMEMLOCK= of systemd, --ulimit memlock= of Docker), or do not lock.",
        )
        self.needed = needed
        self.limit = limit


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """What the system really gave for a tensor's memory, in bytes of the mappings it lies in."""

    nbytes: int
    resident: int
    huge: int
    """In transparent huge pages."""
    locked: int

    def __str__(self) -> str:
        huge = f"{self.huge / self.nbytes:.0%} of it in huge pages" if self.nbytes else "empty"
        locked = "locked" if self.locked >= self.nbytes else "not locked"
        return f"{self.nbytes / _MIB:,.1f} MiB, {huge}, {locked}"


def allocate_pool(nbytes: int, *, lock: bool = False, wait: bool = True, parts: int = 1) -> Tensor:
    """Zeroed uint8 `[nbytes]`, aligned to 64 bytes or more; its pages exist when this returns.

    With the extension: aligned to 2 MiB, in transparent huge pages where the system allows them, touched by torch's
    threads in parallel, spread over the NUMA nodes in turns (all threads read all blocks), and between guard pages.
    `lock` keeps it in physical memory. Without `wait` it can be used at once, and a thread of low priority makes the
    pages exist meanwhile: that takes seconds where page faults are dear, as in many virtual machines. The beginnings of
    `parts` equal parts come first. It is freed with the last tensor that uses it.

    Raises ValueError for a size below 1, `PoolAllocationFailed` if memory is short and `MemoryNotLocked`.
    """
    if nbytes < 1:
        raise ValueError(f"nbytes is {nbytes} but must be at least 1")
    available = available_memory()
    if nbytes > available:
        raise PoolAllocationFailed(nbytes, available, "")
    if not native.is_available():
        if lock:
            raise MemoryNotLocked(nbytes, lock_limit(), "locking needs the native extension")
        return _portable_pool(nbytes, available)
    nodes = numa.allowed_nodes()
    mask = sum(1 << node for node in nodes) if len(nodes) > 1 and max(nodes) < 63 else 0
    try:
        pool: Tensor
        if wait or lock:
            pool = torch.ops.looseleaf.allocate_pool(nbytes, lock, mask)
        else:
            pool = torch.ops.looseleaf.reserve_pool(nbytes, mask, parts)
    except RuntimeError as error:
        failed = re.search(r"pool memory: (\w+) failed with errno (\d+)", str(error))
        if failed is None:
            raise
        call, reason = failed[1], os.strerror(int(failed[2])).lower()
        if call == "mlock":
            raise MemoryNotLocked(nbytes, lock_limit(), reason) from None
        raise PoolAllocationFailed(nbytes, available, f" ({call}: {reason})") from None
    return pool


def _portable_pool(nbytes: int, available: int) -> Tensor:
    try:
        raw = torch.zeros(nbytes + 63, dtype=torch.uint8)
    except RuntimeError:  # torch's allocator says that it could not
        raise PoolAllocationFailed(nbytes, available, f" ({os.strerror(errno.ENOMEM).lower()})") from None
    start = -raw.data_ptr() % 64
    return raw[start : start + nbytes]


def inspect_memory(tensor: Tensor) -> PoolMemory:
    """What lies behind a tensor, from /proc/self/smaps; a mapping counts with the share that the tensor has of it."""
    begin = tensor.data_ptr()
    nbytes = tensor.numel() * tensor.element_size()
    found = {"Rss": 0.0, "AnonHugePages": 0.0, "Locked": 0.0}
    share = 0.0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        mapping = _RANGE.match(line)
        if mapping:
            low, high = (int(text, 16) for text in mapping.groups())
            inside = max(0, min(high, begin + nbytes) - max(low, begin))
            share = inside / (high - low)
        elif share:
            name, _, value = line.partition(":")
            if name in found:
                found[name] += share * 1024 * int(value.split()[0])
    return PoolMemory(nbytes, *(round(found[name]) for name in ("Rss", "AnonHugePages", "Locked")))
