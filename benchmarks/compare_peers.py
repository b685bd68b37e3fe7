"""Looseleaf beside other engines, in turn: each run is a process of its own under the harness of the peer measurements.

    python benchmarks/compare_peers.py ENGINES.toml [--tests T1,T2,T3] [--engines a,b] [--base a] [--rounds 3] [--json]

Prints each engine's figures, and in every round the ratio to the base engines (above 1: the base is faster).
The file says where the harness lies and how each engine is started:

    harness = "/path/to/peers"          # folder of bench_common.py
    prefix = ["taskset", "-c", "0,1"]   # optional, before every command
    [engines.looseleaf]
    precision = "bf16 / bf16"           # weights / KV, for the table
    command = ["{python}", "{here}/bench_looseleaf.py", "--harness", "{harness}", "--threads", "2"]
    [engines.llamacpp-q4]
    precision = "Q4_1 / f16"
    command = ["/venvs/llama/bin/python", "{harness}/bench_llamacpp.py", "/models/model.gguf", "--np", "32"]
    env = { LLAMA_SERVER = "/builds/llama-server" }

`{python}`, `{here}` and `{harness}` stand for this interpreter, this folder and the harness. `--tests` and `--runs` are
appended. Commands run in a temporary folder, so other paths are absolute.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
METRICS = {
    "T1": ("decode_tok_s", "ttft_ms"),
    "T2": ("prefill_tok_s",),
    "T3": ("out_tok_s",),
    "T4": ("wall_s",),
    "T5": ("wall_s",),
}
Figures = dict[tuple[str, str], float]  # (test, metric) -> the median that one process reports
Rounds = list[Figures | None]  # None: the process failed


def parse_results(output: str) -> Figures:
    """The medians in the harness's lines `RESULT T1 {"decode_tok_s": {"median": 56.0, ...}, ...}`."""
    figures: Figures = {}
    for line in output.splitlines():
        word, _, rest = line.partition(" ")
        test, _, values = rest.partition(" ")
        if word == "RESULT" and test in METRICS:
            found = json.loads(values)
            figures |= {(test, metric): found[metric]["median"] for metric in METRICS[test]}
    return figures


def run_engine(engine: dict[str, Any], settings: dict[str, Any], options: argparse.Namespace) -> Figures:
    """One process of its own; RuntimeError where it fails, hangs or leaves out a test."""
    places = {"{python}": sys.executable, "{here}": str(HERE), "{harness}": settings["harness"]}
    command = [*settings.get("prefix", []), *engine["command"], "--tests", options.tests, "--runs", str(options.runs)]
    for place, path in places.items():
        command = [word.replace(place, path) for word in command]
    with tempfile.TemporaryDirectory() as folder:
        try:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=folder,
                env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | engine.get("env", {}),
                start_new_session=True,
            )
        except OSError as error:
            raise RuntimeError(str(error)) from error
        try:
            output, errors = process.communicate(timeout=options.timeout)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(str(error)) from error
        finally:  # servers and workers that the engine started would slow down the next one
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    figures = parse_results(output)
    missing = set(options.tests.split(",")) - {test for test, _ in figures}
    if missing:  # rather than the exit status: an engine may crash only while it shuts down
        raise RuntimeError(f"no figures for {', '.join(sorted(missing))}; {errors[-2000:]}")
    return figures


def ratio(metric: str, base: float, other: float) -> float:
    """How many times faster the base is."""
    return base / other if metric.endswith("tok_s") else other / base


def spread(values: list[float], form: str) -> str:
    if not values:
        return "failed"
    low, middle, high = (f"{value:{form}}" for value in (min(values), median(values), max(values)))
    return f"{middle} ({low}-{high})"


def print_table(rounds: dict[str, Rounds], precisions: dict[str, str], bases: list[str], tests: list[str]) -> None:
    for key in [(test, metric) for test in tests for metric in METRICS[test]]:
        test, metric = key
        print(f"\n{test} {metric}\n")
        print("| engine | weights / KV | median (min-max) | " + " | ".join(f"{base} ÷ it" for base in bases) + " |")
        print("|---" * (3 + len(bases)) + "|")
        for name, runs in rounds.items():
            cells = [name, precisions[name], spread([run[key] for run in runs if run], ",.1f")]
            for base in bases:
                pairs = [(ours[key], run[key]) for ours, run in zip(rounds[base], runs, strict=True) if ours and run]
                cells.append("-" if name == base else spread([ratio(metric, *pair) for pair in pairs], ".2f"))
            print("| " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path, help="the file of engines")
    parser.add_argument("--tests", default="T1,T2,T3")
    parser.add_argument("--engines", help="only these, in this order; default: all of the file")
    parser.add_argument("--base", help="compared with all others; default: the first engine")
    parser.add_argument("--rounds", type=int, default=3, help="processes per engine")
    parser.add_argument("--runs", type=int, default=1, help="draws of T3 to T5 within a process; T1, T2 always have 5")
    parser.add_argument("--timeout", type=float, default=900, help="seconds per process")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    settings = tomllib.loads(options.settings.read_text())
    engines = settings["engines"]
    names = options.engines.split(",") if options.engines else list(engines)
    bases = options.base.split(",") if options.base else names[:1]
    tests = options.tests.split(",")
    unknown = {*names, *bases} - set(engines) | set(tests) - set(METRICS) | set(bases) - set(names)
    if unknown:
        parser.error(
            f"unknown: {', '.join(sorted(unknown))}. Engines: {', '.join(engines)}. Tests: {', '.join(METRICS)}."
        )

    rounds: dict[str, Rounds] = {name: [] for name in names}
    for turn in range(options.rounds):
        for name in names if turn % 2 == 0 else reversed(names):  # so that a slow drift falls on all alike
            try:
                figures = run_engine(engines[name], settings, options)
            except RuntimeError as error:
                print(f"round {turn + 1}: {name} failed: {error}", file=sys.stderr)
                rounds[name].append(None)
                continue
            rounds[name].append(figures)
            shown = ", ".join(f"{test} {metric} {value:,.1f}" for (test, metric), value in figures.items())
            print(f"round {turn + 1}: {name}: {shown}", file=sys.stderr, flush=True)
    precisions = {name: engines[name].get("precision", "?") for name in names}
    if options.json:
        flat = {
            name: [
                {f"{test} {metric}": value for (test, metric), value in run.items()} if run else None for run in runs
            ]
            for name, runs in rounds.items()
        }
        print(json.dumps({"precisions": precisions, "rounds": flat}))
    else:
        print(f"{options.rounds} rounds, each engine a process of its own; ratio above 1: the base is faster.")
        print_table(rounds, precisions, bases, tests)
    if any(None in runs for runs in rounds.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
