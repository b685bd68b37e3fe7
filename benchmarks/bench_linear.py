"""Packed linear layers beside torch's `linear`, the reading of their bytes and the arithmetic at the best rate seen.

    python benchmarks/bench_linear.py [--cold] [--types bfloat16 int8] [--rows 1 16 64 256] [--seconds 0.25] [--json]

All contenders of a shape take turns. Times are medians in microseconds, Python's call included; on a machine that has
other work, --percentile 3 --pause 0.02 (and OMP_PROC_BIND=true) shows what they take when left alone.
`torch`: the faster of float32 and bfloat16 weights there. `floor`: the larger of reading the packed weight once (its
own bytes, summed, in or out of cache as they lie) and the multiplications at the best rate of the whole run, torch's or
ours. By default a weight is used again and again, so that it stays in what cache holds it; with --cold, copies take
turns that together do not fit.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import quantiles

import torch
from torch import Tensor

from looseleaf.kernels import native
from looseleaf.kernels.linear import PackedLinear, WeightType, pack, pack_gguf

SHAPES = ((576, 960), (576, 3072), (1536, 576), (576, 49152))
"""(inputs, outputs) of SmolLM2-135M: qkv, gate and up, down, logits."""
COLD_BYTES = 128 << 20


@dataclass
class Case:
    """Microseconds."""

    shape: str
    type: str
    rows: int
    ours: float
    spread: float
    read: float
    torch_float32: float
    torch_bfloat16: float
    flops: float
    arithmetic: float = 0.0

    @property
    def torch(self) -> float:
        return min(self.torch_float32, self.torch_bfloat16)

    @property
    def floor(self) -> float:
        return max(self.read, self.arithmetic)


def timed(work: Callable[[int], object], calls: int, turn: int) -> float:
    """Microseconds per call."""
    start = time.perf_counter()
    for call in range(calls):
        work(turn * calls + call)
    return (time.perf_counter() - start) / calls * 1e6


def alternate(works: list[Callable[[int], object]], seconds: float, pause: float) -> list[list[float]]:
    """Samples of each, all in turn; a sample is as many calls as take about half a millisecond."""
    calls = []
    for work in works:
        work(0)
        calls.append(max(1, int(500 / max(1.0, timed(work, 2, 0)))))
    samples: list[list[float]] = [[] for _ in works]
    end, turn = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turn < 5:
        for i, work in enumerate(works):
            if pause:
                time.sleep(pause)
                work(turn)
            samples[i].append(timed(work, calls[i], turn))
        turn += 1
    return samples


def packed_example(weight: Tensor, type: str) -> PackedLinear:
    if type != "int4":
        names: dict[str, WeightType] = {"float32": "float32", "bfloat16": "bfloat16", "int8": "int8"}
        return pack(weight, names[type])
    blocks = torch.randint(0, 256, (weight.shape[0], weight.shape[1] // 32, 20), dtype=torch.uint8)
    blocks[:, :, 0:4] = torch.tensor([0.01, -0.08], dtype=torch.float16).view(torch.uint8)
    return pack_gguf(blocks.flatten(1), "Q4_1", weight.shape[1])


def measure(
    inputs: int, outputs: int, type: str, rows: int, seconds: float, cold: bool, percentile: int, pause: float
) -> Case:
    weight = torch.randn(outputs, inputs) * 0.05
    packed = packed_example(weight, type)
    copies = -(-COLD_BYTES // packed.nbytes) if cold else 1
    all_packed = [packed] + [packed_example(weight, type) for _ in range(copies - 1)]
    floats = [weight] + [weight.clone() for _ in range(copies - 1)]
    halves = [w.bfloat16() for w in floats]
    x, out = torch.randn(rows, inputs), torch.empty(rows, outputs)
    x_half = x.bfloat16()
    works: list[Callable[[int], object]] = [
        lambda i: all_packed[i % copies](x, out),
        lambda i: torch.ops.looseleaf.read_memory(all_packed[i % copies].weight),
        lambda i: torch.nn.functional.linear(x, floats[i % copies]),
        lambda i: torch.nn.functional.linear(x_half, halves[i % copies]),
    ]
    samples = alternate(works, seconds, pause)
    ours, read, full, half = (quantiles(s, n=100, method="inclusive")[percentile - 1] for s in samples)
    low, _, high = quantiles(samples[0], n=4)
    shape = f"{inputs}->{outputs}"
    return Case(shape, type, rows, ours, (high - low) / ours, read, full, half, 2.0 * inputs * outputs * rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", default=["bfloat16"], choices=["float32", "bfloat16", "int8", "int4"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 16, 64, 256])
    parser.add_argument("--shapes", nargs="+", type=int, default=[0, 1, 2, 3], help="which of the four")
    parser.add_argument("--seconds", type=float, default=0.25, help="for each case")
    parser.add_argument("--percentile", type=int, default=50)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each sample")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not native.is_available():
        raise SystemExit("the native extension is missing")
    cases = [
        measure(*SHAPES[shape], type, rows, options.seconds, options.cold, options.percentile, options.pause)
        for type in options.types
        for shape in options.shapes
        for rows in options.rows
    ]
    best = max(case.flops / min(case.ours, case.torch) for case in cases)  # per microsecond
    for case in cases:
        case.arithmetic = case.flops / best
    if options.json:
        print(json.dumps([asdict(case) for case in cases]))
        return
    print(f"{native.isa()}, {torch.get_num_threads()} threads, best rate {best / 1e3:.0f} GFLOP/s")
    print("shape       weights   rows      ours ±    torch f32  torch bf16      read    arith  torch/ours  ours/floor")
    for c in cases:
        print(
            f"{c.shape:<11} {c.type:<8} {c.rows:>5} {c.ours:>9.1f} {c.spread:>4.0%} {c.torch_float32:>10.1f} "
            f"{c.torch_bfloat16:>11.1f} {c.read:>9.1f} {c.arithmetic:>8.1f} {c.torch / c.ours:>11.2f} "
            f"{c.ours / c.floor:>11.2f}"
        )


if __name__ == "__main__":
    main()
