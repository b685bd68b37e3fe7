"""T3 in the real engine beside its replay with the step times that `looseleaf calibrate` measured just before.

    python benchmarks/replay_t3.py [--runs 1] [--kv-cache-memory 1GiB] [--cost FILE]

Throughput and the mean time to the first token, draw by draw. Without `--cost` the engine is calibrated first, about
25 seconds. The engine's own loop runs between its steps; nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from looseleaf.engine.calibration import measure_steps
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.engine import Engine
from looseleaf.engine.generation_request import GenerationRequest, ReadRequest
from looseleaf.engine.llm import load_engine
from looseleaf.engine.workload import run_workload
from looseleaf.engine.workload_file import load_workload
from looseleaf.replay.calibrated import Calibrated, fit_steps
from looseleaf.replay.config import ReplayConfig
from looseleaf.replay.cost import StepCost
from looseleaf.replay.cost_files import load_cost
from looseleaf.replay.result import ReplayResult
from looseleaf.replay.simulator import replay
from looseleaf.replay.trace import TraceRequest

WORKLOAD = Path(__file__).parent / "workload.json"


class AtOnce:
    """The lengths of a draw, all arriving at the beginning."""

    name = "T3"

    def __init__(self, draw: list[ReadRequest]) -> None:
        self._draw = draw

    def requests(self) -> Iterator[TraceRequest]:
        for each in self._draw:
            yield TraceRequest(0.0, len(each.prompt.token_ids), each.params.max_tokens or 1, None)


def predicted(engine: Engine, cost: StepCost, draw: list[GenerationRequest]) -> ReplayResult:
    pool = engine.pool
    config = ReplayConfig(
        pool.num_blocks, pool.block_size, scheduler=engine.config.scheduler_config(pool.max_model_len)
    )
    return replay(AtOnce(engine.read_requests(draw)), config, cost)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--kv-cache-memory", default="1GiB")
    parser.add_argument("--cost", type=Path)
    options = parser.parse_args()
    work = load_workload(WORKLOAD)
    engine = load_engine(config=EngineConfig(kv_cache_memory=options.kv_cache_memory))
    if options.cost:
        cost = load_cost(options.cost)
    else:
        fit = fit_steps(measure_steps(engine))
        print(f"calibrated: error {fit.mean_error:.1%} (at most {fit.worst_error:.1%}); {fit.parameters}")
        cost = Calibrated(fit.parameters)
    print(f"{'':6}{'tokens/s':>10}{'replayed':>10}{'':>8}{'first token, s':>16}{'replayed':>10}{'':>8}{'steps':>12}")
    for number, draw in enumerate(work.draws("T3")[: options.runs]):
        engine.reset_prefix_cache()
        run = run_workload(engine, draw)
        result = predicted(engine, cost, draw)
        speed, first = run.output_tokens_per_second, fmean(run.first_token_seconds)
        replayed, waited = result.totals.output_tokens_per_second, result.percentiles()["ttft"]["mean"]
        print(
            f"draw {number}{speed:10.1f}{replayed:10.1f}{replayed / speed - 1:+8.1%}{first:16.2f}{waited:10.2f}"
            f"{waited / first - 1:+8.1%}{run.steps:6} {result.totals.steps:5}"
        )


if __name__ == "__main__":
    main()
