"""Memory for the pool: aligned, zeroed, there when it is returned, lockable, and refused with numbers."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.kernels import native, numa, pool_memory
from looseleaf.kernels.cpu import CpuKVCache
from looseleaf.kernels.factory import make_kv_cache
from looseleaf.kernels.pool_memory import MemoryNotLocked, PoolAllocationFailed, allocate_pool, inspect_memory
from looseleaf.kernels.system_memory import available_memory, huge_page_setting

MIB = 1 << 20
needs_extension = pytest.mark.skipif(
    native._find_library() is None, reason="the native extension was not built on this machine"
)
extension_or_not = pytest.mark.parametrize("extension", [pytest.param(True, marks=needs_extension), False])


def run_python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False, timeout=120
    )


@extension_or_not
@given(nbytes=st.integers(1, 5 * MIB))
@settings(max_examples=20, deadline=None)
def test_a_pool_is_zeroed_aligned_and_as_large_as_asked(extension: bool, nbytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not extension:
            patch.setattr(native, "is_available", lambda: False)
        pool = allocate_pool(nbytes)
    assert (pool.dtype, pool.shape, pool.is_contiguous()) == (torch.uint8, (nbytes,), True)
    assert pool.data_ptr() % (2 * MIB if extension else 64) == 0
    assert not pool.any()
    pool.fill_(255)
    assert pool.min() == 255


@needs_extension
def test_its_pages_exist_at_once_and_are_huge_where_the_system_allows_it() -> None:
    pool = allocate_pool(8 * MIB)
    found = inspect_memory(pool)
    assert (found.nbytes, found.resident, found.locked) == (8 * MIB, 8 * MIB, 0)
    if huge_page_setting() in ("always", "madvise"):
        # All of it, unless physical memory is too fragmented; `inspect_memory` says so then.
        assert found.huge in range(0, 8 * MIB + 1, 2 * MIB)


@needs_extension
@pytest.mark.parametrize("parts", [1, 3, 7, 5000])
def test_pages_come_in_the_background_and_leave_alone_what_is_written_meanwhile(parts: int) -> None:
    pool = allocate_pool(24 * MIB + 4096, wait=False, parts=parts)
    written = torch.arange(0, pool.numel(), 1000)
    pool[written] = 7
    deadline = time.monotonic() + 60
    while inspect_memory(pool).resident < pool.numel() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert inspect_memory(pool).resident >= pool.numel()
    assert int(pool.sum()) == 7 * len(written)
    assert bool((pool[written] == 7).all())


@needs_extension
def test_a_pool_may_end_before_all_its_pages_exist() -> None:
    for _ in range(20):
        allocate_pool(64 * MIB, wait=False)[5] = 1
    with pytest.raises(RuntimeError, match="parts must be positive"):
        torch.ops.looseleaf.reserve_pool(MIB, 0, 0)


@needs_extension
def test_it_lives_as_long_as_a_view_of_it_and_no_longer() -> None:
    import psutil

    process = psutil.Process()
    before = process.memory_info().vms
    view = allocate_pool(64 * MIB)[MIB:].view(torch.float32)
    view.fill_(1.0)
    assert process.memory_info().vms >= before + 64 * MIB
    del view
    assert process.memory_info().vms < before + 32 * MIB


@needs_extension
def test_pages_can_be_spread_over_the_nodes() -> None:
    nodes = numa.allowed_nodes()
    if not nodes:
        pytest.skip("this system does not say which NUMA nodes it has")
    pool = torch.ops.looseleaf.allocate_pool(4 * MIB, False, sum(1 << node for node in nodes))
    with open("/proc/self/numa_maps") as file:
        policies = {int(line.split()[0], 16): line.split()[1] for line in file}
    if policies[pool.data_ptr()] == "default":
        pytest.skip("this container forbids mbind")
    assert policies[pool.data_ptr()].startswith("interleave")


@needs_extension
def test_an_access_beyond_either_end_is_a_fault() -> None:
    done = run_python("""
        import ctypes, os
        from looseleaf.kernels.pool_memory import allocate_pool
        pool = allocate_pool(8192)
        for offset in (0, 8191, -1, 8192):
            child = os.fork()
            if child == 0:
                ctypes.string_at(pool.data_ptr() + offset, 1)
                os._exit(0)
            print(os.waitpid(child, 0)[1] == 0)
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "False", "False"]


@needs_extension
def test_locked_memory_is_locked_or_refused_with_the_limit_and_what_to_do() -> None:
    done = run_python("""
        import os, resource
        from looseleaf.kernels.pool_memory import MemoryNotLocked, allocate_pool, inspect_memory
        small, large = 1 << 16, 4 << 20
        allocate_pool(small)
        _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        if hard != resource.RLIM_INFINITY and hard < large:
            print("skip: the hard limit is", hard)
            raise SystemExit
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, hard))
        if os.geteuid() == 0:  # who has CAP_IPC_LOCK has no limit
            os.setuid(65534)
        pool = allocate_pool(small, lock=True)
        print(inspect_memory(pool).locked)
        try:
            allocate_pool(large, lock=True)
        except MemoryNotLocked as error:
            print(error.needed, error.limit, error)
    """)
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("skip"):
        pytest.skip(done.stdout.removeprefix("skip: "))
    locked, refused = done.stdout.splitlines()
    assert locked == str(1 << 16)
    assert refused.startswith(
        f"{4 << 20} {1 << 20} 4.0 MiB of memory were to be locked, but this process may lock 1.0 MiB"
    )
    assert "ulimit -l" in refused


@extension_or_not
def test_more_than_there_is_is_refused_with_the_numbers(extension: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not extension:
        monkeypatch.setattr(native, "is_available", lambda: False)
    monkeypatch.setattr(pool_memory, "available_memory", lambda: 3 * MIB)
    with pytest.raises(PoolAllocationFailed, match=r"3\.5 MiB of memory were asked for and 3\.0 MiB are available"):
        allocate_pool(3 * MIB + MIB // 2)
    monkeypatch.setattr(pool_memory, "available_memory", lambda: 1 << 62)
    with pytest.raises(PoolAllocationFailed, match="cannot allocate memory") as caught:
        allocate_pool(1 << 46)
    assert (caught.value.needed, caught.value.available) == (1 << 46, 1 << 62)


def test_bad_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    for nbytes in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            allocate_pool(nbytes)
    monkeypatch.setattr(native, "is_available", lambda: False)
    with pytest.raises(MemoryNotLocked, match="needs the native extension"):
        allocate_pool(1, lock=True)


@extension_or_not
def test_a_kv_cache_is_locked_or_refused(extension: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"num_layers": 2, "num_blocks": 3, "block_size": 16, "num_kv_heads": 1, "head_dim": 32}
    if not extension:
        monkeypatch.setattr(native, "is_chosen", lambda: False)
        with pytest.raises(MemoryNotLocked, match="needs the native extension"):
            make_kv_cache(**shape, dtype=torch.float32, lock_memory=True)
        return
    cache = make_kv_cache(**shape, dtype=torch.float32, lock_memory=True)
    assert isinstance(cache, CpuKVCache)
    found = inspect_memory(cache.storage)
    assert found.locked == found.nbytes == 2 * 3 * 16 * 2 * 32 * 4
    assert str(found) == "0.0 MiB, 0% of it in huge pages, locked"


def test_inspection_counts_only_the_share_of_the_tensor() -> None:
    assert inspect_memory(torch.empty(0)).resident == 0
    small = torch.ones(1024)
    assert 0 < inspect_memory(small).resident <= 4096
    assert available_memory() > 0
