"""Looseleaf under the harness of the peer measurements (`bench_common.py`, one engine per process).

    python benchmarks/bench_looseleaf.py --harness DIR [--tests T1,T2,T3,T4,T5] [--runs 3] [--threads 2]
        [--dtype bfloat16] [--quantization int8] [--kv-cache-dtype int8]

DIR is the folder of `bench_common.py`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

import torch

from looseleaf import SamplingParams
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.llm import load_engine
from looseleaf.engine.workload import run_workload


class LooseleafEngine:
    def __init__(self, dtype: str, quantization: str, kv_cache_dtype: str) -> None:
        config = EngineConfig(
            dtype=dtype,
            quantization=quantization,
            kv_cache_dtype=kv_cache_dtype,
            kv_cache_memory="2GiB",
            max_model_len=2048,
        )
        self.engine = load_engine(config=config)

    def run(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Seconds of wall time, time to each first token, tokens out of each sample, steps."""
        done = run_workload(
            self.engine,
            [
                (
                    each["prompt"],
                    SamplingParams(
                        n=each.get("n", 1),
                        temperature=each.get("temperature", 0.0),
                        max_tokens=each["n_out"],
                        ignore_eos=True,
                    ),
                )
                for each in requests
            ],
        )
        return {
            "wall": done.seconds,
            "ttft": done.first_token_seconds,
            "n_out": [len(sample.token_ids) for output in done.outputs for sample in output.outputs],
            "steps": done.steps,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--harness", required=True)
    parser.add_argument("--tests", default="T1,T2,T3,T4,T5")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="none")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--threads", type=int, help="default: torch's, one per core")
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    sys.path.insert(0, options.harness)
    harness = importlib.import_module("bench_common")
    if options.threads:
        torch.set_num_threads(options.threads)
    engine = LooseleafEngine(options.dtype, options.quantization, options.kv_cache_dtype)
    harness.run_tests(engine, options.tests.split(","), options.runs)


if __name__ == "__main__":
    main()
