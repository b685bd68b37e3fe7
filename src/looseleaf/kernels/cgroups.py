"""The limits that a container sets on this process: control groups of version 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def memory_limit(root: Path = ROOT) -> tuple[int, int] | None:
    """(limit, still free below it) in bytes, of the group that leaves least; None without a limit.

    The page cache does not count as used: the kernel gives it up before it kills.
    """
    found = []
    for folder, version in _groups("memory", root):
        limit = _number(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        used = _number(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes"))
        if limit is None or used is None or limit > 1 << 60:  # version 1 writes "no limit" as 2^63 less a page
            continue
        cache = _fields(folder / "memory.stat").get("inactive_file" if version == 2 else "total_inactive_file", 0)
        found.append((limit, max(0, limit - max(0, used - cache))))
    return min(found, key=lambda each: each[1], default=None)


def processor_quota(root: Path = ROOT) -> float | None:
    """Processors' worth of time that this process may use, e.g. 1.5; None without a limit."""
    found = []
    for folder, version in _groups("cpu", root):
        if version == 2:
            words = _read(folder / "cpu.max").split()
            quota, period = (words[0], words[1]) if len(words) == 2 else ("", "")
        else:
            quota, period = (_read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            found.append(int(quota) / int(period))
    return min(found, default=None)


def _groups(controller: str, root: Path) -> Iterator[tuple[Path, int]]:
    """Folder and version of this process's group and of each above it: a limit binds all below."""
    mounts: dict[str, tuple[str, Path, int]] = {}
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind = after.split(" ")[0]
        if kind in ("cgroup", "cgroup2"):
            inside, point = before.split(" ")[3:5]
            controllers = after.split(" ")[-1].split(",") if kind == "cgroup" else [""]
            version = 1 if kind == "cgroup" else 2
            mounts |= {each: (inside, root / point.lstrip("/"), version) for each in controllers}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        key = controller if names else ""  # version 2 has one line, which names no controllers
        if controller not in (names or controller).split(",") or key not in mounts:
            continue
        inside, place, version = mounts[key]
        relative = path.removeprefix(inside.rstrip("/")).strip("/")
        folder = place / relative
        # In a container the path may be the host's, which is not to be seen here: its own group is then the top.
        while folder != place and not folder.is_dir():
            folder = folder.parent
        yield folder, version
        while folder != place:
            folder = folder.parent
            yield folder, version


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text.isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
