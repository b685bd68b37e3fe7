"""What structure costs: masks of 64 outputs that follow a JSON schema, beside a plain step of 64 rows.

    python benchmarks/bench_structured.py [--model smollm2-135m] [--rows 64]

Prints milliseconds per step with and without structure (the same engine, alternating), what of it masks take, and what
one compiled grammar costs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from looseleaf.engine.config import EngineConfig
from looseleaf.engine.engine import Engine
from looseleaf.engine.grammar_compiler import GrammarCompiler
from looseleaf.engine.llm import load_engine
from looseleaf.engine.sampling_params import SamplingParams

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "colour": {"enum": ["red", "green", "blue"]},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 20},
    },
    "required": ["name", "age", "colour", "tags"],
    "additionalProperties": False,
}


def step_times(engine: Engine, rows: int, steps: int, params: dict[str, Any]) -> list[float]:
    """Seconds of each decode step of `rows` requests."""
    for row in range(rows):
        engine.add_request(f"{row} Describe someone as JSON.", {"max_tokens": steps + 8, "seed": row} | params)
    times = []
    for step in range(steps):
        start = time.perf_counter()
        deltas = engine.step()
        if step > 4 and len(deltas) == rows:
            times.append(time.perf_counter() - start)
    for delta in deltas:
        engine.abort(delta.request_id)
    while engine.has_unfinished():
        engine.step()
    return times


def mask_time(compiler: GrammarCompiler, engine: Engine) -> tuple[float, float]:
    """Milliseconds: one mask on the way through an answer, median and the slowest."""
    state = compiler.start(SamplingParams(structured={"json_schema": SCHEMA}).structured or {}).copy()
    text = '{"name": "Ada Lovelace", "age": 36, "colour": "green", "tags": ["' + '", "'.join(["mathematics"] * 8)
    times = []
    for token in engine.tokenizer.encode(text, add_special_tokens=False):
        start = time.perf_counter()
        state.allowed()
        times.append((time.perf_counter() - start) * 1e3)
        state.advance(token)
    return statistics.median(times), max(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    engine = load_engine(args.model, EngineConfig(max_num_seqs=args.rows, max_model_len=256))
    compiler = GrammarCompiler(engine.tokenizer, engine.vocab_size, engine.eos_token_ids)
    started = time.perf_counter()
    compiler.start({"regex": "a"})
    print(f"tokenizer and helper process, once: {(time.perf_counter() - started) * 1e3:.0f} ms")
    started = time.perf_counter()
    compiler.start(SamplingParams(structured={"json_schema": SCHEMA}).structured or {})
    print(f"a new schema, tried and compiled: {(time.perf_counter() - started) * 1e3:.1f} ms")
    median, worst = mask_time(compiler, engine)
    print(f"one mask of {engine.vocab_size:,} tokens: {median:.3f} ms (median), {worst:.3f} ms (slowest)")

    plain, edited, structured = [], [], []
    for _ in range(args.rounds):
        plain.append(statistics.median(step_times(engine, args.rows, args.steps, {"ignore_eos": True})))
        edited.append(
            statistics.median(step_times(engine, args.rows, args.steps, {"ignore_eos": True, "logit_bias": {5: 0.5}}))
        )
        structured.append(
            statistics.median(step_times(engine, args.rows, args.steps, {"structured": {"json_schema": SCHEMA}}))
        )
    base = statistics.median(plain)
    for name, times in (("plain", plain), ("with a logit bias", edited), ("structured", structured)):
        middle = statistics.median(times)
        spread = (max(times) - min(times)) / middle
        print(f"step of {args.rows} rows, {name}: {middle * 1e3:.1f} ms, {middle / base:.3f} of plain (± {spread:.1%})")


if __name__ == "__main__":
    main()
