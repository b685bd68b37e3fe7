"""From a device to requests at once."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from looseleaf.plan.activations import activation_peak
from looseleaf.plan.answers import answers
from looseleaf.plan.arithmetic import ModelArithmetic
from looseleaf.plan.capacity import Capacity, PlanSettings
from looseleaf.plan.changes import changes_that_fit
from looseleaf.plan.derivation import derivation
from looseleaf.plan.errors import InvalidPlan
from looseleaf.plan.hardware import find_hardware
from looseleaf.plan.known_models import find_model
from looseleaf.plan.lengths import parse_lengths
from looseleaf.plan.sheet import COLUMNS, sheet_rows, write_sheet


def capacity(model: str = "llama-3.1-8b", **settings: Any) -> Capacity:
    if isinstance(settings.get("hardware"), str):
        settings["hardware"] = find_hardware(settings["hardware"])
    return Capacity(find_model(model), PlanSettings(**settings))


def test_known_pools() -> None:
    fits = capacity(num_blocks=1952, max_model_len=20_000)
    assert (fits.tokens, round(fits.concurrency(20_000), 2), fits.fits) == (31_232, 1.56, True)
    refused = capacity(num_blocks=1478, max_model_len=29_000)
    assert (refused.tokens, round(refused.concurrency(29_000), 2), refused.fits) == (23_648, 0.82, False)
    assert refused.longest_context == 23_648
    windows = capacity("starcoder2-3b", num_blocks=137_407, max_num_batched_tokens=8192)
    assert round(windows.concurrency(16_384), 2) == 178.68


def test_the_pool_of_a_measured_run() -> None:
    """vLLM 0.19 on an RTX 4090: 2,588 blocks of 16. (The reserve was taken from this run.)"""
    found = capacity(hardware="rtx-4090", max_model_len=32_768, max_num_seqs=256, max_num_batched_tokens=2048)
    assert found.num_blocks == 2588
    left = found.usable - found.weight_bytes - found.activations.nbytes - found.reserve
    assert found.left_for_cache == left
    assert 0 <= left - found.pool_bytes < found.layout.block_bytes


@pytest.mark.parametrize(("tokens", "gib"), [(20_000, 17.06 - 14.99), (29_000, 17.98 - 14.99)])
def test_the_activation_peak_of_measured_runs(tokens: int, gib: float) -> None:
    """torch's peak less the weights, as vLLM 0.6 printed it for these token budgets."""
    arithmetic = ModelArithmetic(find_model("llama-3.1-8b"))
    assert activation_peak(arithmetic, tokens, 256, wide=False).nbytes / 2**30 == pytest.approx(gib, abs=0.015)


@pytest.mark.parametrize(("tokens", "blocks"), [(20_000, 1952), (29_000, 1478)])
def test_the_pool_of_runs_that_no_figure_was_taken_from(tokens: int, blocks: int) -> None:
    """vLLM 0.6 on an RTX 3090, whole prompts in one step, with the 0.35 GiB outside torch that it printed."""
    reserve = int(0.35 * 2**30)
    found = capacity(hardware="rtx-3090", max_num_batched_tokens=tokens, max_num_seqs=256, reserve=reserve)
    assert found.num_blocks == pytest.approx(blocks, rel=0.02)


def test_terms_add_up_to_the_whole() -> None:
    for model in ("llama-3.1-8b", "gpt-oss-20b", "deepseek-v3", "gemma-3-27b-it"):
        found = capacity(model, hardware="h200", tensor_parallel_size=8)
        kept, request, weights, memory = derivation(found)
        assert request.terms[-1].amount == found.layout.request_bytes(found.max_model_len)
        assert sum(t.amount for t in weights.terms[:-1]) == weights.terms[-1].amount == found.weight_bytes
        by_name = {t.name: t.amount for t in memory.terms}
        minus = sum(amount for name, amount in by_name.items() if name.startswith("−"))
        assert by_name["usable"] - minus == by_name["left for the cache"]
        assert kept.terms[-1].amount == found.layout.slope
        assert all(term.how for section in (kept, request, weights) for term in section.terms)


def test_settings_that_make_no_sense() -> None:
    for wrong in (
        {},
        {"hardware": "epyc-9654"},
        {"hardware": "24GiB", "memory_utilization": 0.0},
        {"hardware": "24GiB", "memory_utilization": 1.5},
        {"num_blocks": 10, "kv_cache_memory": 10},
        {"num_blocks": 0},
        {"num_blocks": 10, "max_model_len": 0},
        {"num_blocks": 10, "max_model_len": 10**8},
        {"num_blocks": 10, "block_size": 0},
        {"num_blocks": 10, "max_num_batched_tokens": 0},
        {"num_blocks": 10, "tensor_parallel_size": 5},
        {"num_blocks": 10, "kv_cache_dtype": "int7"},
    ):
        with pytest.raises(InvalidPlan) as caught:
            capacity(**wrong)
        assert caught.value.hint


def test_what_is_given_replaces_what_is_counted() -> None:
    plain = capacity(hardware="rtx-4090")
    assert capacity(hardware="rtx-4090", extra_weights=2**30).left_for_cache == plain.left_for_cache - 2**30
    assert capacity(hardware="rtx-4090", reserve=0).left_for_cache == plain.left_for_cache + plain.reserve
    assert capacity(hardware="rtx-4090", weight_memory=2**30).weight_bytes == 2**30
    assert capacity(hardware="rtx-4090", weight_memory=2**30, tensor_parallel_size=2).weight_bytes == 2**29
    assert capacity(hardware="rtx-4090", kv_cache_memory=2**30).num_blocks == 512


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("llama-3.1-8b", {"hardware": "rtx-4090"}),
        ("llama-3.1-8b", {"hardware": "14GiB"}),
        ("llama-3.1-70b", {"hardware": "h100"}),
        ("llama-3.1-8b", {"hardware": "epyc-9654:16GiB"}),
        ("llama-3.1-8b", {"num_blocks": 1478, "max_model_len": 29_000}),
        ("gpt-oss-120b", {"num_blocks": 6000, "max_num_batched_tokens": 65_536}),
        ("deepseek-v3", {"hardware": "h200", "tensor_parallel_size": 4}),
    ],
)
def test_each_change_makes_it_fit(model: str, settings: dict[str, Any]) -> None:
    found = capacity(model, **settings)
    assert not found.fits
    assert found.missing_bytes > 0
    changes = changes_that_fit(found)
    assert changes
    assert all(change.concurrency >= 1 for change in changes)
    assert len({change.kind for change in changes}) == len(changes)
    order = ["share", "step", "cache", "length", "weights", "ranks", "device"]
    assert [c.kind for c in changes] == sorted((c.kind for c in changes), key=order.index)


def test_the_least_change_is_named() -> None:
    by_kind = {c.kind: c.setting for c in changes_that_fit(capacity(num_blocks=1478, max_model_len=29_000))}
    assert by_kind == {"cache": "keys and values in fp8", "length": "max_model_len 23,648"}
    big = capacity("llama-3.1-70b", hardware="h100")
    assert {c.kind: c.setting for c in changes_that_fit(big)}["ranks"] == "tensor parallel over 4"


def test_answers_at_the_traffics_lengths() -> None:
    found = capacity(num_blocks=2588, max_model_len=32_768, shareable_unit=528)
    said = {term.name: term for term in answers(found, parse_lengths("prompt=552,output=100-200")).terms}
    assert said["at your lengths"].amount == pytest.approx(2588 / 40)  # 552 + 75 tokens: 40 blocks
    assert said["all at their ends"].amount == pytest.approx(2588 / 44)  # 552 + 150: 44 blocks
    assert said["prefix hits at most"].text == "95.7%"
    none = answers(found, parse_lengths("prompt=528,output=1"))
    assert {term.name: term for term in none.terms}["prefix hits at most"].text == "none"
    long = {term.name: term for term in answers(found, parse_lengths("prompt=32768,output=1")).terms}
    assert long["your longest request"].text == "32,769"
    assert "REFUSED" in long["your longest request"].how


@pytest.mark.parametrize("text", ["", "prompt=1", "prompt=0,output=3", "prompt=5-2,output=3", "prompt=1,prompt=2", "x"])
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(InvalidPlan):
        parse_lengths(text)


def test_the_sheet_has_every_figure(tmp_path: Path) -> None:
    found = capacity(num_blocks=1478, max_model_len=29_000)
    rows = sheet_rows([("num_blocks", 1478)], derivation(found), answers(found))
    write_sheet(tmp_path / "plan.csv", rows)
    with (tmp_path / "plan.csv").open(encoding="utf-8") as file:
        read = list(csv.reader(file))
    assert tuple(read[0]) == COLUMNS
    assert read[1:] == rows
    assert ["answers", "tokens that fit", "23648", "tokens", "1,478 blocks of 16"] in rows
    assert any(row[0] == "changes that fit" for row in rows)
    with pytest.raises(InvalidPlan, match="cannot be written"):
        write_sheet(tmp_path / "absent" / "plan.csv", rows)


def test_a_plan_needs_no_tensors() -> None:
    code = (
        "import sys, looseleaf.plan.answers, looseleaf.plan.sheet, looseleaf.plan.engine_logs\n"
        "from looseleaf.plan.known_models import find_model\n"
        "find_model('llama-3.1-8b')\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy') or 'looseleaf.engine' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
