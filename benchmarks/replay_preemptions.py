"""Preemptions by watermark, beside published ones of a system that serves in order and preempts by recompute.

    python benchmarks/replay_preemptions.py [--seeds 10] [--max-bypass 0]

450 requests at once, prompts of 1,000 and outputs of 5,000 tokens (uniform, give or take 20 %), at most 128 running,
18,724 blocks of 16, no prefix cache. No prompt is cut into chunks: a step has as many tokens as the longest sequence.
How long a step takes hardly matters, as nobody arrives later.
"""

from __future__ import annotations

import argparse
from statistics import fmean, stdev

from looseleaf.plan.arithmetic import ModelArithmetic
from looseleaf.plan.hardware import find_hardware
from looseleaf.plan.known_models import find_model
from looseleaf.replay.config import ReplayConfig
from looseleaf.replay.generators import GeneratedTrace
from looseleaf.replay.roofline import Roofline
from looseleaf.replay.simulator import replay
from looseleaf.scheduler import SchedulerConfig

PUBLISHED = {0.0: 1065, 0.05: 187, 0.15: 168}
REQUESTS = "n=450,arrivals=all,prompt=uniform:800-1200,output=uniform:4000-6000"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--max-bypass", type=int, default=0)
    options = parser.parse_args()
    cost = Roofline(ModelArithmetic(find_model("llama-3.1-8b")), find_hardware("a100-80gb"))
    print(f"{'watermark':>9}{'published':>11}{'mean':>9}{'':>8}{'spread':>8}{'range':>14}")
    for watermark, published in PUBLISHED.items():
        scheduler = SchedulerConfig(8192, 128, 8192, watermark=watermark, max_bypass=options.max_bypass)
        config = ReplayConfig(18_724, 16, prefix_caching=False, scheduler=scheduler)
        counts = [
            replay(
                GeneratedTrace.parse(f"{REQUESTS},seed={seed}"), config, cost, keep_requests=False
            ).totals.preemptions
            for seed in range(options.seeds)
        ]
        mean, spread = fmean(counts), stdev(counts) if len(counts) > 1 else 0.0
        ratio = mean / published - 1
        print(f"{watermark:9.0%}{published:11,}{mean:9.1f}{ratio:+8.1%}{spread:8.1f}{min(counts):7,}–{max(counts):,}")


if __name__ == "__main__":
    main()
