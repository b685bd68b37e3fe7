"""What the machine can do at best, measured: how fast memory is read, and how fast matrices are multiplied."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from looseleaf.kernels import native
from looseleaf.kernels.pool_memory import allocate_pool
from looseleaf.kernels.processors import read_caches
from looseleaf.kernels.system_memory import available_memory

_LARGEST_PRODUCT = 2048
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ReadSpeed:
    place: str
    """ "memory" or "cache"."""
    nbytes: int
    threads: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class MatmulSpeed:
    dtype: str
    threads: int
    flops: float
    """Floating-point operations per second."""


def measure_reads() -> list[ReadSpeed]:
    """Memory and last cache, each with one thread and with torch's; about half a second."""
    last = max((cache.nbytes for cache in read_caches()), default=8 * _MIB)
    in_cache = min(last // 4, 8 * _MIB)
    in_memory = min(max(4 * last, 128 * _MIB), 512 * _MIB, max(in_cache, available_memory() // 8))
    data = allocate_pool(in_memory // 64 * 64)
    found = []
    for place, nbytes in (("memory", data.numel()), ("cache", in_cache // 64 * 64)):
        for threads in sorted({1, torch.get_num_threads()}):
            with torch_threads(threads):
                speed = tensor_read_bandwidth(data[:nbytes], seconds=0.1)
            found.append(ReadSpeed(place, nbytes, threads, speed))
    return found


def measure_matmuls() -> list[MatmulSpeed]:
    """float32 and bfloat16 on torch's threads; about half a second."""
    threads = torch.get_num_threads()
    dtypes = (torch.float32, torch.bfloat16)
    return [MatmulSpeed(str(dtype).removeprefix("torch."), threads, matmul_rate(dtype)) for dtype in dtypes]


def read_bandwidth(nbytes: int, threads: int | None = None, *, seconds: float = 0.1) -> float:
    """Bytes per second at which `nbytes` of memory are read over and over, for about `seconds`.

    The faster of torch's sum and a plain loop over vectors (`read_memory`), each the best of its runs. `threads`
    defaults to torch's. A buffer much larger than the caches gives the speed of memory, a small one that of a cache.
    Raises ValueError for a size or a number of threads below 1, and `PoolAllocationFailed`.
    """
    with torch_threads(threads):
        return tensor_read_bandwidth(allocate_pool(max(8, -(-nbytes // 8) * 8)), seconds=seconds)


def tensor_read_bandwidth(data: Tensor, *, seconds: float = 0.1) -> float:
    """The same for the bytes of a contiguous tensor, on torch's threads."""
    flat = data.view(-1).view(torch.uint8)
    words = flat[: flat.numel() // 8 * 8].view(torch.float32)
    readers: list[Callable[[], object]] = [words.sum]
    if native.is_available():
        readers.append(lambda: torch.ops.looseleaf.read_memory(flat))
    return flat.numel() / min(_seconds_per_call(reader, seconds / len(readers)) for reader in readers)


def matmul_rate(dtype: torch.dtype, threads: int | None = None, *, seconds: float = 0.15) -> float:
    """Floating-point operations per second of torch's product of square matrices, measured in about `seconds`.

    Matrices grow from 128 rows up to the largest that the time allows; the best rate counts.
    """
    best, size = 0.0, 128
    deadline = time.perf_counter() + seconds
    with torch_threads(threads), torch.inference_mode():
        while size <= _LARGEST_PRODUCT:
            a, b = torch.ones(2, size, size, dtype=dtype)
            product = torch.empty(size, size, dtype=dtype)
            taken = _seconds_per_call(partial(torch.mm, a, b, out=product), seconds / 8)
            best = max(best, 2 * size**3 / taken)
            size *= 2
            if time.perf_counter() + 3 * 8 * taken > deadline:
                break
    return best


def _seconds_per_call(work: Callable[[], object], seconds: float) -> float:
    """Shortest duration of a call, after one to warm up; calls as often as `seconds` allow, three times at least.

    The shortest, since other programs' load is no property of the machine.
    """
    work()
    taken: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < deadline:
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Let torch compute with `threads` for a while (None: with as many as it has)."""
    before = torch.get_num_threads()
    if threads is not None and threads < 1:
        raise ValueError(f"threads is {threads} but must be at least 1")
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
