"""The machine's memory: how much there is, how much of it may be used, and in which pages."""

from __future__ import annotations

import re
import resource
from dataclasses import dataclass
from pathlib import Path

import psutil

from looseleaf.kernels import cgroups

STATUS = Path("/proc/self/status")
_CAP_IPC_LOCK = 14
TRANSPARENT_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """Sizes in bytes; None where there is no limit."""

    total: int
    available: int
    """What can be had without swapping, under the container's limit too."""
    container_limit: int | None
    lock_limit: int | None
    """What this process may lock (RLIMIT_MEMLOCK)."""
    huge_pages: str
    """Transparent huge pages: "always", "madvise" (for those who ask, as the pool does), "never", or "unknown"."""


def read_system_memory() -> SystemMemory:
    machine = psutil.virtual_memory()
    container = cgroups.memory_limit()
    return SystemMemory(
        total=machine.total,
        available=machine.available if container is None else min(machine.available, container[1]),
        container_limit=None if container is None else container[0],
        lock_limit=lock_limit(),
        huge_pages=huge_page_setting(),
    )


def available_memory() -> int:
    return read_system_memory().available


def lock_limit() -> int | None:
    """Bytes; None without a limit, which includes processes that are allowed to pass it (CAP_IPC_LOCK)."""
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", _read(STATUS), re.MULTILINE)
    if capabilities and int(capabilities[1], 16) >> _CAP_IPC_LOCK & 1:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def huge_page_setting(path: Path = TRANSPARENT_HUGE_PAGES) -> str:
    chosen = re.search(r"\[(\w+)\]", _read(path))
    return chosen[1] if chosen else "unknown"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
