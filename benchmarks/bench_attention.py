"""Paged attention beside the plain reading of the same bytes, torch's attention, other block sizes and other orders.

    python benchmarks/bench_attention.py [--only decode,int8,…] [--rounds N] [--json]

Each ratio is of things that take turns in one run: the median over the rounds, with the 10th and 90th percentile. With
torch's threads; OMP_NUM_THREADS sets them. On a machine that has other work, --percentile 10 --pause 0.02 compares what
each takes when left alone, and --cpu-time the processor time of the calling thread (with OMP_NUM_THREADS=1).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from statistics import median, quantiles

import torch
from torch.nn import functional

from looseleaf.kernels import AttentionBatch, native
from looseleaf.kernels.cpu import CpuKVCache
from looseleaf.kernels.interface import Cascade
from looseleaf.kernels.processors import read_caches

SHAPES = {"9q/3kv × 64": (9, 3, 64), "32q/8kv × 128": (32, 8, 128)}
CONTEXT = 2048
SEQUENCES = 32
PREFILL = 1024
BLOCK_SIZES = (16, 32, 64, 128, 2048)
LAST_CACHE = max((cache.nbytes for cache in read_caches()), default=32 << 20)


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    beside: str
    milliseconds: float
    """Of ours: the median, or the percentile asked for."""
    ratio: float
    low: float
    high: float
    target: float | None
    """The least ratio."""


class Decode:
    """Sequences of `CONTEXT` tokens in a cache with so many layers that one does not find another's bytes."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        sequences: int,
        dtype: torch.dtype,
        *,
        block_size: int = 16,
        in_order: bool = False,
        layers: int = 1,
        queries: int = 1,
        context: int = CONTEXT,
    ) -> None:
        heads, kv_heads, dim = shape
        per_seq = -(-context // block_size)
        self.cache = CpuKVCache(
            num_layers=layers,
            num_blocks=sequences * per_seq,
            block_size=block_size,
            num_kv_heads=kv_heads,
            head_dim=dim,
            dtype=dtype,
        )
        generator = torch.Generator().manual_seed(0)
        ids = (
            torch.arange(sequences * per_seq) if in_order else torch.randperm(sequences * per_seq, generator=generator)
        )
        tables = ids.int().view(sequences, per_seq)
        slots = torch.arange(sequences * per_seq * block_size)
        rows = torch.randn(2, CONTEXT, kv_heads, dim, generator=generator)
        for layer in range(layers):
            for first in range(0, len(slots), CONTEXT):
                some = slots[first : first + CONTEXT]
                self.cache.write(layer, rows[0, : len(some)], rows[1, : len(some)], some)
        starts = torch.arange(sequences + 1, dtype=torch.int32) * queries
        lens = torch.full((sequences,), context, dtype=torch.int32)
        self.batch = AttentionBatch(tables, lens, starts, slots[:0], sequences if queries == 1 else 0)
        self.query = torch.randn(sequences * queries, heads, dim, generator=generator)
        self.scale = dim**-0.5
        self._turn = 0

    @property
    def layer_bytes(self) -> int:
        return self.cache.storage[0].numel()

    def attend(self) -> None:
        self._turn += 1
        self.cache.attend(self._turn % self.cache.num_layers, self.query, self.batch, scale=self.scale)

    def read_plainly(self) -> None:
        self._turn += 1
        torch.ops.looseleaf.read_memory(self.cache.storage[self._turn % self.cache.num_layers].view(-1))

    def sum_with_torch(self) -> None:
        self._turn += 1
        self.cache.storage[self._turn % self.cache.num_layers].view(-1).view(torch.int64).sum()


class Shared:
    """Decodes that have their first `shared` tokens in common: in the same blocks, or each in its own copy of them."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        sequences: int,
        shared: int,
        dtype: torch.dtype,
        *,
        own: int = 64,
        copies: bool = False,
    ):
        heads, kv_heads, dim = shape
        common, rest = shared // 16, -(-own // 16)
        everyones = common * (sequences if copies else 1)
        num_blocks = everyones + sequences * rest
        ids = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0)).int()
        first = ids[:everyones].view(-1, common).expand(sequences, common)
        tables = torch.cat([first, ids[everyones:].view(sequences, rest)], 1)
        self.cache = CpuKVCache(
            num_layers=1, num_blocks=num_blocks, block_size=16, num_kv_heads=kv_heads, head_dim=dim, dtype=dtype
        )
        generator = torch.Generator().manual_seed(1)
        rows = torch.randn(2, CONTEXT, kv_heads, dim, generator=generator)
        slots = torch.arange(num_blocks * 16)
        for begin in range(0, len(slots), CONTEXT):
            some = slots[begin : begin + CONTEXT]
            self.cache.write(0, rows[0, : len(some)], rows[1, : len(some)], some)
        lens = torch.full((sequences,), shared + own, dtype=torch.int32)
        starts = torch.arange(sequences + 1, dtype=torch.int32)
        self.batch = AttentionBatch(tables, lens, starts, torch.empty(0, dtype=torch.int64), sequences)
        self.query = torch.randn(sequences, heads, dim, generator=generator)

    def attend(self, cascade: Cascade) -> Callable[[], object]:
        batch = replace(self.batch, cascade=cascade)
        return lambda: self.cache.attend(0, self.query, batch, scale=self.query.shape[-1] ** -0.5)


class TorchAttention:
    """Contiguous keys and values of the same numbers, for `scaled_dot_product_attention`."""

    def __init__(self, shape: tuple[int, int, int], sequences: int, queries: int, context: int, dtype: torch.dtype):
        heads, kv_heads, dim = shape
        self.query = torch.randn(sequences, heads, queries, dim).to(dtype)
        self.key, self.value = (torch.randn(sequences, kv_heads, context, dim).to(dtype) for _ in range(2))

    def attend(self) -> None:
        functional.scaled_dot_product_attention(
            self.query, self.key, self.value, is_causal=self.query.shape[2] > 1, enable_gqa=True
        )


clock = time.perf_counter
pause = 0.0
percentile: int | None = None


def take_turns(functions: list[Callable[[], object]], rounds: int, least_seconds: float = 0.005) -> list[list[float]]:
    """Seconds per call of each function, round by round."""
    calls = []
    for function in functions:
        function()
        begin = clock()
        function()
        calls.append(max(1, math.ceil(least_seconds / (clock() - begin))))
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for index, function in enumerate(functions):
            time.sleep(pause)
            begin = clock()
            for _ in range(calls[index]):
                function()
            times[index].append((clock() - begin) / calls[index])
    return times


def figure(what: str, beside: str, ours: list[float], other: list[float], target: float | None) -> Figure:
    """How many times faster ours is, round by round."""
    ratios = [b / a for a, b in zip(ours, other, strict=True)]
    tenths = quantiles(ratios, n=10)
    ratio = median(ratios) if percentile is None else _percentile(other) / _percentile(ours)
    return Figure(what, beside, 1e3 * _percentile(ours), ratio, tenths[0], tenths[-1], target)


def _percentile(times: list[float]) -> float:
    return median(times) if percentile is None else quantiles(times, n=100, method="inclusive")[percentile - 1]


def best_of(*times: list[float]) -> list[float]:
    """The times of whichever is fastest at its median."""
    return min(times, key=_percentile)


def places(shape: tuple[int, int, int]) -> Iterator[tuple[str, int, int]]:
    """Where the bytes are, sequences, layers: out of cache, and in a quarter of the last cache or one sequence."""
    _, kv_heads, dim = shape
    each = CONTEXT * 2 * kv_heads * dim * 2
    yield "memory", SEQUENCES, max(1, -(-4 * LAST_CACHE // (SEQUENCES * each)))
    yield "cache", max(1, LAST_CACHE // 4 // each), 1


def decode(rounds: int) -> Iterator[Figure]:
    for name, shape in SHAPES.items():
        for place, sequences, layers in places(shape):
            paged = Decode(shape, sequences, torch.bfloat16, layers=layers)
            ours, plain, summed = take_turns([paged.attend, paged.read_plainly, paged.sum_with_torch], rounds)
            what = f"bf16 decode, {name}, {sequences} × {CONTEXT:,}, in {place}"
            yield figure(what, "reading the bytes", ours, best_of(plain, summed), 0.85)


def int8(rounds: int) -> Iterator[Figure]:
    for name, shape in SHAPES.items():
        for place, sequences, layers in places(shape):
            narrow = Decode(shape, sequences, torch.int8, layers=layers)
            wide = Decode(shape, sequences, torch.bfloat16, layers=layers)
            ours, other, plain = take_turns([narrow.attend, wide.attend, narrow.read_plainly], rounds)
            what = f"int8 decode, {name}, {sequences} × {CONTEXT:,}, in {place}"
            yield figure(what, "bf16", ours, other, 1.6)
            yield figure(what, "reading the bytes", ours, plain, None)


def sdpa(rounds: int) -> Iterator[Figure]:
    for name, shape in SHAPES.items():
        paged = Decode(shape, SEQUENCES, torch.bfloat16)
        theirs = [TorchAttention(shape, SEQUENCES, 1, CONTEXT, dtype) for dtype in (torch.bfloat16, torch.float32)]
        ours, *others = take_turns([paged.attend, *(each.attend for each in theirs)], rounds)
        what = f"bf16 decode, {name}, {SEQUENCES} × {CONTEXT:,}"
        yield figure(what, "torch SDPA, better of bf16 and float32", ours, best_of(*others), 1.5)


def order(rounds: int) -> Iterator[Figure]:
    for name, shape in SHAPES.items():
        for place, sequences, layers in places(shape):
            shuffled = Decode(shape, sequences, torch.bfloat16, layers=layers)
            ordered = Decode(shape, sequences, torch.bfloat16, layers=layers, in_order=True)
            ours, other = take_turns([shuffled.attend, ordered.attend], rounds)
            yield figure(f"blocks shuffled, {name}, {sequences}, in {place}", "in order", ours, other, 0.97)


def blocks(rounds: int) -> Iterator[Figure]:
    for name, shape in SHAPES.items():
        cases = [Decode(shape, SEQUENCES, torch.bfloat16, block_size=size) for size in BLOCK_SIZES]
        ours, *others = take_turns([case.attend for case in cases], rounds)
        for size, other in zip(BLOCK_SIZES[1:], others, strict=True):
            target = 0.95 if size == CONTEXT else None
            yield figure(f"block of 16, {name}, {SEQUENCES} × {CONTEXT:,}", f"block of {size:,}", ours, other, target)


def prefill(rounds: int) -> Iterator[Figure]:
    for name, shape in SHAPES.items():
        theirs = [TorchAttention(shape, 1, PREFILL, PREFILL, dtype) for dtype in (torch.bfloat16, torch.float32)]
        for dtype in (torch.bfloat16, torch.float32, torch.int8):
            paged = Decode(shape, 1, dtype, queries=PREFILL, context=PREFILL)
            ours, *others = take_turns([paged.attend, *(each.attend for each in theirs)], rounds)
            what = f"prefill of {PREFILL:,}, {name}, {paged.cache.dtype_name}"
            target = None if dtype == torch.int8 else 1.0
            yield figure(what, "torch SDPA, better of bf16 and float32", ours, best_of(*others), target)


def long(rounds: int) -> Iterator[Figure]:
    """One sequence alone: both cores, and the same bytes read."""
    for name, shape in SHAPES.items():
        paged = Decode(shape, 1, torch.bfloat16, context=32_768)
        ours, plain = take_turns([paged.attend, paged.read_plainly], rounds)
        yield figure(f"bf16 decode, {name}, 1 × 32,768", "reading the bytes", ours, plain, None)


def cascade(rounds: int) -> Iterator[Figure]:
    """Blocks that sequences share, read once for all: beside reading them for each, and beside copies of them."""
    for name, shape in {"4q/4kv × 64": (4, 4, 64), **SHAPES}.items():
        for dtype in (torch.bfloat16, torch.int8, torch.float32):
            for sequences, shared in ((2, 2048), (4, 256), (4, 2048), (16, 1024), (64, 2048)):
                if sequences == 64 and shape[0] == 32:
                    continue  # gigabytes of copies
                case = Shared(shape, sequences, shared, dtype)
                aside = Shared(shape, sequences, shared, dtype, copies=True)
                ours, automatic, off, copies = take_turns(
                    [case.attend("on"), case.attend("auto"), case.attend("off"), aside.attend("off")], rounds
                )
                what = f"cascade, {name}, {case.cache.dtype_name}, {sequences} × {shared:,}"
                asked = name == "9q/3kv × 64" and sequences == 64 and dtype == torch.bfloat16
                yield figure(what, "cascade off", ours, off, 3.0 if asked else None)
                yield figure(what.replace("cascade", "auto"), "cascade off", automatic, off, 0.97)
                yield figure(what, "a copy for each", ours, copies, None)


PARTS: dict[str, Callable[[int], Iterator[Figure]]] = {
    "decode": decode,
    "int8": int8,
    "sdpa": sdpa,
    "order": order,
    "blocks": blocks,
    "prefill": prefill,
    "long": long,
    "cascade": cascade,
}


def show(found: Figure) -> str:
    target = (
        "" if found.target is None else f"≥ {found.target:.2f} {'met' if found.ratio >= found.target else 'MISSED'}"
    )
    spread = f"{found.ratio:5.2f} ({found.low:.2f}–{found.high:.2f})"
    return f"{found.what:<52} {found.milliseconds:8.2f} ms  {spread}  {target:<13} of {found.beside}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="comma-separated: " + ", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each turn")
    parser.add_argument("--percentile", type=int, help="of the times, instead of the median of the ratios")
    options = parser.parse_args()
    global clock, pause, percentile
    pause, percentile = options.pause, options.percentile
    if options.cpu_time:
        clock = time.thread_time
    if not native.is_available():
        parser.error("the native extension was not built")
    if not options.json:
        print(
            f"{native.isa()}, {torch.get_num_threads()} threads; ratio: how many times as fast (10th–90th percentile)"
        )
    figures = []
    with torch.inference_mode():
        for part in options.only.split(","):
            for found in PARTS[part](options.rounds):
                figures.append(found)
                if not options.json:
                    print(show(found), flush=True)
    if options.json:
        print(json.dumps([asdict(each) for each in figures], indent=2))


if __name__ == "__main__":
    main()
