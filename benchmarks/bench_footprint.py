"""Peak memory against weights + pool + the stated bound, and growth over many short requests.

    python benchmarks/bench_footprint.py [--requests 10000] [--json]

Looks at the resident set of this process, which is Looseleaf and nothing else.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
from pathlib import Path

import psutil

from looseleaf import SamplingParams
from looseleaf.engine.config import EngineConfig, format_bytes
from looseleaf.engine.footprint import workspace_bound
from looseleaf.engine.llm import load_engine
from looseleaf.engine.workload import run_workload


def peak_resident() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # Linux: set the high-water mark to what is resident now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    process = psutil.Process()
    before = process.memory_info().rss
    config = EngineConfig(kv_cache_memory="512MiB", max_model_len=2048)
    engine = load_engine(config=config)
    weights = engine.model.nbytes
    bound = workspace_bound(engine.model.config, config, engine.pool.max_model_len)
    loading_peak = peak_resident()
    workload = json.loads((Path(__file__).parent / "workload.json").read_text())
    # The first products bring torch's and MKL's code and buffers into memory, whatever their size.
    run_workload(engine, [(r["prompt"], SamplingParams(max_tokens=2, top_p=0.9)) for r in workload["warmup"][:1]])
    loaded = process.memory_info().rss

    reset_peak()
    run_workload(
        engine,
        [
            (r["prompt"], SamplingParams(temperature=0.8, top_p=0.95, max_tokens=min(r["n_out"], 24)))
            for r in workload["T3"][0]
        ]
        + [(r["prompt"], SamplingParams(temperature=0, max_tokens=1)) for r in workload["T2"]],
    )
    running_peak = peak_resident()

    generator = random.Random(0)
    resident: list[int] = []
    waves, per_wave = 20, options.requests // 20
    for _ in range(waves):
        prompts = [[generator.randrange(17, 49_152) for _ in range(generator.randint(1, 4))] for _ in range(per_wave)]
        run_workload(
            engine, [(prompt, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)) for prompt in prompts]
        )
        gc.collect()
        resident.append(process.memory_info().rss)
    engine.memory.audit()

    figures = {
        "process before loading": before,
        "weights": weights,
        "pool": engine.pool.nbytes,
        "bound on a step's tensors": bound,
        "peak while loading": loading_peak,
        "resident when loaded and warm": loaded,
        "of it neither process, weights nor pool": loaded - before - weights - engine.pool.nbytes,
        "peak while running": running_peak,
        f"resident after {per_wave} short requests": resident[0],
        f"resident after {waves * per_wave // 2}": resident[waves // 2 - 1],
        f"resident after {waves * per_wave}": resident[-1],
    }
    # When loaded, the process also holds the tokenizer and, of a GGUF file, the mapped pages: state, not steps.
    beyond = running_peak - loaded
    ratios = {
        "peak while running beyond that, of the bound (limit 1)": beyond / bound,
        "resident at the end, of that half-way (limit 1.01)": resident[-1] / resident[waves // 2 - 1],
    }
    if options.json:
        print(json.dumps(figures | ratios))
    else:
        for name, value in figures.items():
            print(f"{name:<62} {format_bytes(value):>12}")
        for name, ratio in ratios.items():
            print(f"{name:<62} {ratio:>12.3f}")
    if beyond > bound or resident[-1] > 1.01 * resident[waves // 2 - 1]:
        sys.exit("a limit is exceeded")


if __name__ == "__main__":
    main()
