"""The processors that this process may use: names, cores, caches, and limits on their time."""

from __future__ import annotations

import math
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from looseleaf.kernels import cgroups
from looseleaf.kernels.numa import parse_list

_SYSTEM = Path("/sys/devices/system/cpu")
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Cores:
    """What of the machine's processors this process may use."""

    machine: int
    """Logical processors of the machine."""
    logical: int
    """Logical processors that it may run on (its affinity)."""
    physical: int
    """Cores that these belong to: two logical processors of one core share its arithmetic units."""
    quota: float | None
    """Processors' worth of time that its container may use; None without a limit."""

    @property
    def most(self) -> int:
        """Threads that can run at the same time at all."""
        return self.logical if self.quota is None else min(self.logical, math.ceil(self.quota))

    @property
    def best(self) -> int:
        """Threads to compute with: one per core, and none that the quota would stop in the middle of a step."""
        return self.physical if self.quota is None else max(1, min(self.physical, math.floor(self.quota)))


@dataclass(frozen=True, slots=True)
class Cache:
    name: str
    """ "L1d", "L2", "L3"."""
    nbytes: int
    shared_by: int
    """Logical processors that share one."""


def read_cores(system: Path = _SYSTEM) -> Cores:
    allowed = os.sched_getaffinity(0)
    physical = {_read(system / f"cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in allowed}
    return Cores(os.cpu_count() or len(allowed), len(allowed), len(physical), cgroups.processor_quota())


def read_caches(system: Path = _SYSTEM) -> list[Cache]:
    """Data caches of the first processor that this process may use, the nearest first; [] if they are not listed."""
    found = []
    for index in sorted((system / f"cpu{min(os.sched_getaffinity(0))}/cache").glob("index*")):
        level, kind, size = (_read(index / name) for name in ("level", "type", "size"))
        amount = re.fullmatch(r"(\d+)([KM]?)", size)
        if kind not in ("Data", "Unified") or amount is None:
            continue
        nbytes = int(amount[1]) << {"": 0, "K": 10, "M": 20}[amount[2]]
        shared = len(parse_list(_read(index / "shared_cpu_list"))) or 1
        found.append(Cache(f"L{level}{'d' if kind == 'Data' else ''}", nbytes, shared))
    return found


def processor_name(cpuinfo: Path = _CPUINFO) -> str:
    match = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", _read(cpuinfo), re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
