"""Memory that is nearer to some processors than to others (NUMA)."""

from __future__ import annotations

import os
import re
from pathlib import Path

NODES = Path("/sys/devices/system/node")
STATUS = Path("/proc/self/status")


def parse_list(text: str) -> list[int]:
    """ "0-2,5" → [0, 1, 2, 5], the form in which the kernel lists processors and nodes."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def node_processors(nodes: Path = NODES) -> dict[int, list[int]]:
    """The processors of each node that has memory; {} where the system does not say."""
    try:
        with_memory = parse_list((nodes / "has_memory").read_text())
        return {node: parse_list((nodes / f"node{node}" / "cpulist").read_text()) for node in with_memory}
    except (OSError, ValueError):
        return {}


def allowed_nodes(nodes: Path = NODES, status: Path = STATUS) -> list[int]:
    """Nodes with memory that this process may use and processors that it may run on."""
    try:
        allowed = re.search(r"^Mems_allowed_list:\s*(\S+)", status.read_text(), re.MULTILINE)
        memory = set(parse_list(allowed.group(1))) if allowed else set()
    except (OSError, ValueError):
        return []
    usable = os.sched_getaffinity(0)
    return [node for node, cpus in node_processors(nodes).items() if node in memory and usable.intersection(cpus)]
