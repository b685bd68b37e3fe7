"""Step costs: runs cost what single steps cost, fits find what was put in, and files are read or refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.errors import ConfigurationError
from looseleaf.plan.arithmetic import ModelArithmetic
from looseleaf.plan.hardware import find_hardware
from looseleaf.plan.known_models import find_model
from looseleaf.replay.calibrated import Calibrated, StepParameters, fit_steps
from looseleaf.replay.cost_files import load_cost
from looseleaf.replay.roofline import Roofline
from looseleaf.replay.step_table import StepTable

PARAMETERS = StepParameters(step=0.002, token=3e-4, crossover=9.0, sample=1.7e-4, context=2.1e-7, pair=3.3e-8)


def roofline(model: str, hardware: str = "a100-80gb", **settings: int) -> Roofline:
    return Roofline(ModelArithmetic(find_model(model), **settings), find_hardware(hardware))


COSTS = {
    "dense": roofline("llama-3.1-8b"),
    "windows": roofline("gpt-oss-20b"),
    "experts": roofline("mixtral-8x7b-v0.1", tensor_parallel=2),
    "calibrated": Calibrated(PARAMETERS),
    "table": StepTable(
        np.array([1.0, 8, 64]), np.array([0.0, 1000, 50_000]), np.array([[1, 2, 9], [3, 3, 20], [4, 5, 40.0]])
    ),
}


@given(
    name=st.sampled_from(sorted(COSTS)),
    num_seqs=st.integers(1, 300),
    extra=st.integers(0, 2_000_000),
    num_steps=st.integers(1, 40),
)
def test_a_run_of_decode_steps_costs_what_its_steps_cost(name: str, num_seqs: int, extra: int, num_steps: int) -> None:
    cost, first = COSTS[name], num_seqs + extra
    run = cost.decode_seconds(num_seqs=num_seqs, context_tokens=first, num_steps=num_steps)
    assert run.tolist() == [
        cost.seconds(
            num_tokens=num_seqs,
            num_seqs=num_seqs,
            num_sampled=num_seqs,
            context_tokens=context,
            attention_pairs=context,
        )
        for context in range(first, first + num_seqs * num_steps, num_seqs)
    ]


def test_the_roofline_of_a_decode_step_is_bytes_over_bandwidth() -> None:
    cost = roofline("llama-3.1-8b")
    hardware, model = cost.hardware, cost.model
    seconds = cost.seconds(num_tokens=4, num_seqs=4, num_sampled=4, context_tokens=10_000, attention_pairs=10_000)
    nbytes = model.weight_bytes_read(4) + 10_000 * 131_072
    assert seconds == pytest.approx(
        nbytes / (hardware.bandwidth * hardware.bandwidth_efficiency) + hardware.step_overhead
    )


def test_the_roofline_of_a_long_prompt_is_operations_over_peak() -> None:
    cost = roofline("llama-3.1-8b")
    hardware, model = cost.hardware, cost.model
    pairs = 4096 * 4097 // 2
    seconds = cost.seconds(num_tokens=4096, num_seqs=1, num_sampled=1, context_tokens=4096, attention_pairs=pairs)
    flops = 4096 * model.flops_per_token + model.flops_per_sample + pairs * 4 * 32 * 4096
    rate = hardware.peak_flops("bfloat16") * hardware.compute_efficiency
    assert seconds == pytest.approx(flops / rate + hardware.step_overhead)


def test_hardware_of_which_only_the_memory_is_known_has_no_roofline() -> None:
    with pytest.raises(ConfigurationError, match="bandwidth"):
        Roofline(ModelArithmetic(find_model("llama-3.1-8b")), find_hardware("24GiB"))


class Step(NamedTuple):
    num_tokens: int
    num_sampled: int
    context_tokens: int
    attention_pairs: int
    seconds: float


def measured(parameters: StepParameters, noise: float) -> list[Step]:
    rng, cost, steps = random.Random(3), Calibrated(parameters), []
    for num_seqs, prompt in [(1, 16), (4, 16), (16, 16), (64, 16), (1, 512), (32, 64), (16, 256), (64, 128), (8, 1024)]:
        tokens = num_seqs * prompt
        chunk = (tokens, num_seqs, tokens, num_seqs * prompt * (prompt + 1) // 2)
        decode = (num_seqs, num_seqs, tokens + num_seqs, tokens + num_seqs)
        for counts in (chunk, decode):
            seconds = cost.seconds(
                num_tokens=counts[0],
                num_seqs=0,
                num_sampled=counts[1],
                context_tokens=counts[2],
                attention_pairs=counts[3],
            )
            steps.append(Step(*counts, seconds * rng.uniform(1 - noise, 1 + noise)))
    return steps


def test_a_fit_finds_the_parameters_that_made_the_steps() -> None:
    fit = fit_steps(measured(PARAMETERS, noise=0.0))
    assert fit.worst_error < 0.02
    assert fit_steps(measured(PARAMETERS, noise=0.05)).mean_error < 0.06


def test_a_fit_has_no_negative_parameters() -> None:
    steps = [step._replace(seconds=0.01 + 1e-9 * (1e5 - step.context_tokens)) for step in measured(PARAMETERS, 0.0)]
    parameters = fit_steps(steps).parameters
    assert min(parameters.context, parameters.pair, parameters.token, parameters.sample, parameters.step) >= 0
    with pytest.raises(ConfigurationError, match="too few"):
        fit_steps(steps[:5])


def test_what_calibration_saved_is_read_again(tmp_path: Path) -> None:
    cost = Calibrated(PARAMETERS, {"model": "m"})
    cost.save(tmp_path / "cost.json")
    read = load_cost(tmp_path / "cost.json")
    assert isinstance(read, Calibrated)
    assert (read.parameters, read.about) == (PARAMETERS, {"model": "m"})


def test_tables_are_interpolated(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("context_tokens,num_tokens,seconds\n0,1,1\n100,1,2\n0,11,3\n100,11,6\n")
    table = load_cost(path)
    at = {"num_seqs": 1, "num_sampled": 1, "attention_pairs": 1}
    assert table.seconds(num_tokens=6, context_tokens=50, **at) == pytest.approx(3.0)
    assert table.seconds(num_tokens=1, context_tokens=300, **at) == pytest.approx(4.0)
    assert table.seconds(num_tokens=11, context_tokens=0, **at) == 3.0


BROKEN = {
    "missing.json": (None, "cannot be read"),
    "text.json": ("{", "no JSON"),
    "other.json": (json.dumps({"kind": "roofline"}), "no step times"),
    "names.json": (json.dumps({"kind": "calibrated", "parameters": {"speed": 1}}), "parameters"),
    "negative.json": (
        json.dumps({"kind": "calibrated", "parameters": dict.fromkeys(StepParameters.__dataclass_fields__, -1)}),
        "at least 0",
    ),
    "column.csv": ("num_tokens,seconds\n1,1\n", "no column 'context_tokens'"),
    "line.csv": ("num_tokens,context_tokens,seconds\n1,0,1\n2,x,1\n", "Line 3"),
    "hole.csv": ("num_tokens,context_tokens,seconds\n1,0,1\n2,5,1\n", "does not say"),
    "small.csv": ("num_tokens,context_tokens,seconds\n1,0,1\n", "at least two"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_files_that_hold_no_cost_are_refused(name: str, tmp_path: Path) -> None:
    text, message = BROKEN[name]
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigurationError) as error:
        load_cost(tmp_path / name)
    assert message in str(error.value)
