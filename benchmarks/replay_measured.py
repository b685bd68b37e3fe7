"""A real engine's run beside its replay, fed with hardware figures, the model's configuration and the pool alone.

    python benchmarks/replay_measured.py FOLDER [--plot FILE.html]

FOLDER holds `measured/RTX4090_Llama-3.1-8B` (`requests.jsonl`, `timeseries.csv`), the trace that was run
(`traces/sharegpt300_llama-3.1-8b_bs16.jsonl.gz`) and the configuration in `model_configs`. The engine was vLLM 0.19
with a step budget of 2,048 tokens, 256 sequences and prefix caching. It serves strictly in order and keeps no blocks
back: a watermark of 0 and no bypass are the same here.
"""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from looseleaf.plan.arithmetic import ModelArithmetic
from looseleaf.plan.hardware import find_hardware
from looseleaf.plan.model_config import load_model
from looseleaf.replay.config import ReplayConfig
from looseleaf.replay.result import ReplayResult
from looseleaf.replay.roofline import Roofline
from looseleaf.replay.simulator import replay
from looseleaf.replay.trace import read_trace
from looseleaf.scheduler import SchedulerConfig

MEASURED_BLOCKS, LARGER_POOL = 2588, 3400
SERVED_IN_ORDER = SchedulerConfig(
    max_num_batched_tokens=2048, max_num_seqs=256, max_model_len=32768, watermark=0.0, max_bypass=0
)


@dataclass(frozen=True)
class Run:
    """Seconds; `running` and `waiting` by whole seconds since the beginning."""

    ttft: float
    tpot: float
    makespan: float
    running: NDArray[np.float64]
    waiting: NDArray[np.float64]


def measured(folder: Path) -> Run:
    run = folder / "measured" / "RTX4090_Llama-3.1-8B"
    requests = [json.loads(line) for line in (run / "requests.jsonl").read_text().splitlines()]
    seconds = list(csv.DictReader((run / "timeseries.csv").read_text().splitlines()))
    first = min(each["queued_ts"] for each in requests)
    return Run(
        ttft=fmean(each["first_token_ts"] - each["queued_ts"] for each in requests),
        tpot=fmean((each["last_token_ts"] - each["first_token_ts"]) / (each["output_toks"] - 1) for each in requests),
        makespan=max(each["last_token_ts"] for each in requests) - first,
        running=np.array([float(each["running"]) for each in seconds]),
        waiting=np.array([float(each["waiting"]) for each in seconds]),
    )


def replayed(folder: Path, num_blocks: int) -> ReplayResult:
    model = ModelArithmetic(load_model(folder / "model_configs" / "meta-llama--Meta-Llama-3.1-8B.json"))
    trace = read_trace(folder / "traces" / "sharegpt300_llama-3.1-8b_bs16.jsonl.gz")
    config = ReplayConfig(num_blocks, 16, scheduler=SERVED_IN_ORDER)
    return replay(trace, config, Roofline(model, find_hardware("rtx-4090")))


def as_run(result: ReplayResult) -> Run:
    latencies, timeline = result.percentiles(), result.timeline_columns()
    ends = timeline["time"] + 1.0  # as measured: each second is reported at its end
    grid = np.arange(1, int(result.totals.makespan) + 2)
    return Run(
        ttft=latencies["ttft"]["mean"],
        tpot=latencies["tpot"]["mean"],
        makespan=result.totals.makespan - float(result.request_columns()["arrival"].min()),
        running=np.interp(grid, ends, timeline["running"]),
        waiting=np.interp(grid, ends, timeline["waiting"]),
    )


def curve_difference(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Mean absolute difference, as a share of the mean of `one`."""
    count = min(len(one), len(other))
    return float(np.abs(one[:count] - other[:count]).mean() / one.mean())


def plot(path: Path, real: Run, simulated: Run) -> None:
    from plotly import graph_objects

    figure = graph_objects.Figure()
    for name, run in (("measured", real), ("replayed", simulated)):
        for what, values in (("running", run.running), ("waiting", run.waiting)):
            seconds = list(range(1, len(values) + 1))
            figure.add_scatter(x=seconds, y=values.tolist(), name=f"{what}, {name}", mode="lines")
    figure.update_layout(
        title="RTX 4090, Llama-3.1-8B, 300 ShareGPT requests, 2,588 blocks", xaxis_title="s", yaxis_title="sequences"
    )
    figure.write_html(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    real = measured(options.folder)
    result = replayed(options.folder, MEASURED_BLOCKS)
    simulated, larger = as_run(result), as_run(replayed(options.folder, LARGER_POOL))
    print(f"{'':22}{'measured':>10}{'replayed':>10}{'':>9}{LARGER_POOL:>10,} blocks")
    for name, unit in (("ttft", "s"), ("tpot", "ms"), ("makespan", "s")):
        scale = 1e3 if unit == "ms" else 1.0
        a, b, c = (scale * getattr(run, name) for run in (real, simulated, larger))
        print(f"mean {name + ', ' + unit:17}{a:10.2f}{b:10.2f}{b / a - 1:+9.1%}{c:10.2f}{c / b - 1:+9.1%}")
    for what in ("running", "waiting"):
        difference = curve_difference(getattr(real, what), getattr(simulated, what))
        print(
            f"{what + ', by second':22}{getattr(real, what).mean():10.2f}{getattr(simulated, what).mean():10.2f}",
            end="",
        )
        print(f"   mean absolute difference {difference:.1%}")
    totals = result.totals
    print(f"replay: {totals.preemptions} preemptions, {totals.recomputed_tokens:,} tokens computed again")
    if options.plot:
        plot(options.plot, real, simulated)


if __name__ == "__main__":
    main()
