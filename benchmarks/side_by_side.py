"""Two engines in turn on the same work: each run is a process of its own, so neither warms nor crowds the other.

    python benchmarks/side_by_side.py [--test T3] [--dtype float32] [--pairs 3] [--requests N] [--json]

Prints output tokens per second of Looseleaf and of transformers' continuous batching, and the ratio pair by pair.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
Requests = list[dict[str, Any]]


def run_looseleaf(requests: Requests, warm_up: Requests, dtype: str) -> float:
    """Seconds for all requests at once, the engine loaded and warm."""
    from looseleaf import SamplingParams
    from looseleaf.engine.config import EngineConfig
    from looseleaf.engine.llm import load_engine
    from looseleaf.engine.workload import run_workload

    engine = load_engine(config=EngineConfig(dtype=dtype, kv_cache_memory="2GiB", max_model_len=2048))

    def run(each: Requests) -> float:
        return run_workload(
            engine,
            [(r["prompt"], SamplingParams(temperature=0, max_tokens=r["n_out"], ignore_eos=True)) for r in each],
        ).seconds

    run(warm_up)
    return run(requests)


def run_transformers(requests: Requests, warm_up: Requests, dtype: str) -> float:
    """The same through `generate`'s continuous batching, at its best page size of those tried (256)."""
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    from export_hf import export_default_model

    model = AutoModelForCausalLM.from_pretrained(
        export_default_model(), dtype=getattr(torch, dtype), attn_implementation="sdpa"
    ).eval()
    settings = GenerationConfig(max_new_tokens=256, do_sample=False, eos_token_id=-1, pad_token_id=2)
    batching = ContinuousBatchingConfig(page_size=256, max_batch_tokens=4096, max_requests_per_batch=64)
    manager = model.init_continuous_batching(generation_config=settings, continuous_batching_config=batching)
    manager.start()

    def run(each: Requests) -> float:
        started = time.perf_counter()
        for request in each:
            manager.add_request(request["prompt"], max_new_tokens=request["n_out"], eos_token_id=-1)
        waiting = len(each)
        while waiting:
            result = manager.get_result(timeout=10)
            if result is None:
                if not manager.is_running():
                    raise RuntimeError("transformers' batching thread ended")
            elif result.error:
                raise RuntimeError(result.error)
            elif result.is_finished():
                waiting -= 1
        return time.perf_counter() - started

    run(warm_up)
    seconds = run(requests)
    manager.stop(block=True)
    return seconds


ENGINES: dict[str, Callable[[Requests, Requests, str], float]] = {
    "looseleaf": run_looseleaf,
    "transformers": run_transformers,
}


def in_own_process(engine: str, test: str, draw: int, requests: int | None, dtype: str) -> float:
    command = [sys.executable, __file__, "--run", engine, "--test", test, "--draw", str(draw), "--dtype", dtype]
    if requests is not None:
        command += ["--requests", str(requests)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{engine} failed:\n{done.stderr[-3000:]}")
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test", default="T3")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--requests", type=int, help="only the first N of the draw")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--run", choices=list(ENGINES), help=argparse.SUPPRESS)
    parser.add_argument("--draw", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    workload = json.loads((HERE / "workload.json").read_text())
    draws = [draw if isinstance(draw, list) else [draw] for draw in workload[options.test]]
    if options.run:
        requests = draws[options.draw][: options.requests]
        print(ENGINES[options.run](requests, workload["warmup"], options.dtype))
        return

    rates: dict[str, list[float]] = {name: [] for name in ENGINES}
    for pair in range(options.pairs):
        draw = pair % len(draws)
        tokens = sum(request["n_out"] for request in draws[draw][: options.requests])
        for name in ENGINES:
            rates[name].append(tokens / in_own_process(name, options.test, draw, options.requests, options.dtype))
        print(f"pair {pair + 1}: " + ", ".join(f"{n} {r[-1]:.1f} tokens/s" for n, r in rates.items()), file=sys.stderr)
    ratios = [ours / theirs for ours, theirs in zip(rates["looseleaf"], rates["transformers"], strict=True)]
    figures = rates | {"ratio": ratios}
    if options.json:
        print(json.dumps({"test": options.test, "dtype": options.dtype, **figures}))
        return
    print(f"{options.test}, {options.dtype}, output tokens per second: median (min-max) of {options.pairs}")
    for name, values in figures.items():
        print(f"  {name:<14} {median(values):8.2f}  ({min(values):.2f}-{max(values):.2f})")


if __name__ == "__main__":
    main()
