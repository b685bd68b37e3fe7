"""Cores, caches, nodes and the limits of containers, read from trees of files such as Linux has them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.errors import ConfigurationError
from looseleaf.kernels import cgroups, system_memory, threads
from looseleaf.kernels.numa import allowed_nodes, node_processors, parse_list
from looseleaf.kernels.processors import Cores, processor_name, read_caches, read_cores

GIB = 1 << 30


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


@given(st.sets(st.integers(0, 300)))
def test_lists_of_processors(numbers: set[int]) -> None:
    assert parse_list(",".join(map(str, sorted(numbers)))) == sorted(numbers)
    assert parse_list("0-2,5,7-8\n") == [0, 1, 2, 5, 7, 8]


def test_two_logical_processors_of_a_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 4, 5})
    monkeypatch.setattr(cgroups, "processor_quota", lambda: None)
    names = {f"cpu{cpu}/topology/thread_siblings_list": f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    cores = read_cores(write_tree(tmp_path, names))
    assert (cores.logical, cores.physical, cores.best, cores.most) == (4, 2, 2, 4)
    assert read_cores(tmp_path / "nothing").physical == 4


@pytest.mark.parametrize(("quota", "best", "most"), [(None, 4, 8), (2.5, 2, 3), (0.5, 1, 1), (6.0, 4, 6), (99.0, 4, 8)])
def test_a_quota_limits_threads(quota: float | None, best: int, most: int) -> None:
    cores = Cores(machine=16, logical=8, physical=4, quota=quota)
    assert (cores.best, cores.most) == (best, most)
    threads.check_threads(most, cores)
    with pytest.raises(ConfigurationError, match=rf"{most + 1} threads .* 8 of the machine's 16") as caught:
        threads.check_threads(most + 1, cores)
    assert caught.value.hint == f"Use at most {most}; {best} is best here."
    with pytest.raises(ConfigurationError, match="at least 1"):
        threads.check_threads(0, cores)


def test_caches(tmp_path: Path) -> None:
    first = min(os.sched_getaffinity(0))
    levels = [("1", "Data", "48K", "0"), ("1", "Instruction", "32K", "0"), ("3", "Unified", "32M", "0-3,8")]
    for index, values in enumerate(levels):
        names = ("level", "type", "size", "shared_cpu_list")
        folder = f"cpu{first}/cache/index{index}"
        write_tree(tmp_path, {f"{folder}/{name}": value for name, value in zip(names, values, strict=True)})
    found = [(cache.name, cache.nbytes, cache.shared_by) for cache in read_caches(tmp_path)]
    assert found == [("L1d", 48 << 10, 1), ("L3", 32 << 20, 5)]
    assert read_caches(tmp_path / "nothing") == []


def test_nodes(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    here = ",".join(map(str, cpus))
    nodes = {"has_memory": "0-2", "node0/cpulist": here, "node1/cpulist": "", "node2/cpulist": here}
    write_tree(tmp_path, {**nodes, "status": "Name:\tx\nMems_allowed_list:\t0-1"})
    assert node_processors(tmp_path) == {0: cpus, 1: [], 2: cpus}
    assert allowed_nodes(tmp_path, tmp_path / "status") == [0]
    assert allowed_nodes(tmp_path / "nothing", tmp_path / "status") == []


def test_processor_name(tmp_path: Path) -> None:
    write_tree(tmp_path, {"cpuinfo": "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n"})
    assert processor_name(tmp_path / "cpuinfo") == "Some CPU @ 3 GHz"
    assert processor_name(tmp_path / "nothing") != ""


def test_limits_of_version_2_bind_all_below(tmp_path: Path) -> None:
    group = "sys/fs/cgroup"
    root = write_tree(
        tmp_path,
        {
            "proc/self/mountinfo": f"30 23 0:26 / /{group} rw - cgroup2 cgroup2 rw",
            "proc/self/cgroup": "0::/pod/box",
            f"{group}/pod/memory.max": str(8 * GIB),
            f"{group}/pod/memory.current": str(7 * GIB),
            f"{group}/pod/memory.stat": f"anon 5\ninactive_file {GIB}",
            f"{group}/pod/cpu.max": "150000 100000",
            f"{group}/pod/box/memory.max": "max",
            f"{group}/pod/box/memory.current": "1",
            f"{group}/pod/box/cpu.max": "max 100000",
        },
    )
    assert cgroups.memory_limit(root) == (8 * GIB, 2 * GIB)
    assert cgroups.processor_quota(root) == 1.5


@pytest.mark.parametrize("path", ["/docker/abc", "/not/to/be/seen"])
def test_limits_of_version_1(path: str, tmp_path: Path) -> None:
    memory, cpu = "sys/fs/cgroup/memory", "sys/fs/cgroup/cpu,cpuacct"
    inside = "/docker/abc" if path == "/docker/abc" else "/"
    root = write_tree(
        tmp_path,
        {
            "proc/self/mountinfo": f"31 23 0:26 {inside} /{memory} rw - cgroup cgroup rw,memory\n"
            f"32 23 0:27 {inside} /{cpu} rw - cgroup cgroup rw,cpu,cpuacct",
            "proc/self/cgroup": f"4:memory:{path}\n2:cpu,cpuacct:{path}\n0::/",
            f"{memory}/memory.limit_in_bytes": str(4 * GIB),
            f"{memory}/memory.usage_in_bytes": str(3 * GIB),
            f"{cpu}/cpu.cfs_quota_us": "50000",
            f"{cpu}/cpu.cfs_period_us": "100000",
        },
    )
    assert cgroups.memory_limit(root) == (4 * GIB, GIB)
    assert cgroups.processor_quota(root) == 0.5
    write_tree(root, {f"{memory}/memory.limit_in_bytes": str(2**63 - 4096), f"{cpu}/cpu.cfs_quota_us": "-1"})
    assert cgroups.memory_limit(root) is None
    assert cgroups.processor_quota(root) is None


def test_no_control_groups_no_limits(tmp_path: Path) -> None:
    assert cgroups.memory_limit(tmp_path) is None
    assert cgroups.processor_quota(tmp_path) is None


def test_a_containers_limit_counts_as_what_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "memory_limit", lambda: (2 * GIB, 1000))
    found = system_memory.read_system_memory()
    assert (found.available, found.container_limit) == (1000, 2 * GIB)


def test_huge_page_setting(tmp_path: Path) -> None:
    write_tree(tmp_path, {"enabled": "always [madvise] never"})
    assert system_memory.huge_page_setting(tmp_path / "enabled") == "madvise"
    assert system_memory.huge_page_setting(tmp_path / "nothing") == "unknown"


def test_this_machine() -> None:
    cores = read_cores()
    assert 1 <= cores.physical <= cores.logical <= cores.machine
    assert 1 <= cores.best <= cores.most
    flags = Path("/proc/meminfo").read_text()
    total = re.search(r"MemTotal:\s+(\d+) kB", flags)
    assert total is not None
    assert system_memory.read_system_memory().total == 1024 * int(total[1])
