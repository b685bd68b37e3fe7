"""Whether the kernel killed something because memory ran out."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_COUNTERS = Path("/proc/vmstat")


def count_oom_kills() -> int | None:
    """Processes that the kernel has ended for want of memory since it started; None where it does not say."""
    with suppress(OSError, ValueError):
        for line in _COUNTERS.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None
