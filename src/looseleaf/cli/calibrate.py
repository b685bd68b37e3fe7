"""`looseleaf calibrate`: what a step takes on this machine, for replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from looseleaf.cli.command import command
from looseleaf.cli.consoles import note, stdout, write
from looseleaf.cli.options import EngineOptions, OutputOptions
from looseleaf.errors import ConfigurationError

if TYPE_CHECKING:
    from looseleaf.engine.engine import Engine
    from looseleaf.replay.calibrated import Fit


def register(app: typer.Typer) -> None:
    command(app, "calibrate", omit=("lora",))(calibrate)


def calibrate(
    engine: EngineOptions,
    output: OutputOptions,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Where the step times go, for [bold]replay --cost[/]."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="About how long to measure; the smallest batches are measured in any case.", min=0.0)
    ] = 25.0,
) -> None:
    """Measure how long steps of this engine take on this machine, and describe them by six numbers.

        looseleaf calibrate --out machine.json

        looseleaf replay TRACE --cost machine.json --num-blocks 1456 --max-num-seqs 64

    Prompts of random tokens are computed and decoded, alone and in batches. Nothing else should run on the machine.
    """
    from looseleaf.engine.calibration import measure_steps
    from looseleaf.engine.llm import load_engine
    from looseleaf.replay.calibrated import Calibrated, fit_steps

    if out is not None and not out.parent.is_dir():
        raise ConfigurationError(f"There is no folder {str(out.parent)!r} for {out.name}.", hint="Make it first.")
    engine.use_threads()
    measured = load_engine(engine.model, engine.config())
    steps = measure_steps(measured, most_seconds=seconds)
    fit = fit_steps(steps)
    cost = Calibrated(fit.parameters, _about(engine.model, measured, fit, len(steps)))
    if out is not None:
        cost.save(out)
        note(f"Wrote {out}.")
    if output.json:
        write(json.dumps(cost.describe(), indent=2) + "\n")
    else:
        _print(cost.about, fit)


def _about(model: str, engine: Engine, fit: Fit, num_steps: int) -> dict[str, Any]:
    import torch

    from looseleaf import __version__

    pool = engine.pool
    return {
        "model": model,
        "dtype": str(engine.config.torch_dtype).removeprefix("torch."),
        "kv_cache_dtype": str(pool.kv_dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "num_blocks": pool.num_blocks,
        "block_size": pool.block_size,
        "max_model_len": pool.max_model_len,
        "version": __version__,
        "measured_steps": num_steps,
        "mean_error": fit.mean_error,
        "worst_error": fit.worst_error,
    }


def _print(about: dict[str, Any], fit: Fit) -> None:
    parameters = fit.parameters
    least = f", at least {parameters.crossover:.0f} of them" if parameters.crossover >= 2 else ""
    rows = (
        ("a step", f"{1e3 * parameters.step:.3f} ms"),
        ("each token", f"{1e6 * parameters.token:.1f} µs{least}"),
        ("each token sampled", f"{1e6 * parameters.sample:.1f} µs"),
        ("each token of context", f"{1e9 * parameters.context:.1f} ns"),
        ("each query and key", f"{1e9 * parameters.pair:.2f} ns"),
    )
    console = stdout()
    console.print(f"{about['model']}, {about['dtype']}, {about['threads']} threads:", markup=False)
    for name, value in rows:
        console.print(f"  {name:22} {value}", markup=False)
    console.print(
        f"Of {about['measured_steps']} measured steps: mean error {fit.mean_error:.1%}, worst {fit.worst_error:.1%}.",
        markup=False,
    )
    console.print(
        f"Pool: --num-blocks {about['num_blocks']} --block-size {about['block_size']}, "
        f"--max-model-len {about['max_model_len']}.",
        markup=False,
    )
