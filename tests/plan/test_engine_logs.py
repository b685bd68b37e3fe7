"""Start-up logs of vLLM and SGLang, as they write them."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.plan.capacity import Capacity, PlanSettings
from looseleaf.plan.engine_logs import Explanation, explain_log
from looseleaf.plan.errors import UnreadableLog
from looseleaf.plan.known_models import find_model

LOGS = Path(__file__).parent / "logs"


def explained(name: str, model: str | None = None) -> Explanation:
    plan = None if model is None else Capacity(find_model(model), PlanSettings(num_blocks=1))
    with (LOGS / f"{name}.log").open(encoding="utf-8") as lines:
        return explain_log(lines, plan)


def figures(found: Explanation) -> dict[str, str]:
    return {each.figure: each.value for each in found.meanings}


def test_vllm_with_blocks() -> None:
    found = explained("vllm_v0_fits", "llama-3.1-8b")
    assert found.engine == "vLLM"
    assert figures(found) | {"blocks": "1,952", "concurrency": "1.56×", "KV cache": "3.81 GiB"} == figures(found)
    assert [check.agrees for check in found.checks] == [True, True, True]


def test_vllm_with_every_term() -> None:
    found = explained("vllm_v0_profile", "llama-3.1-8b")
    terms = {"device": "23.55 GiB", "weights": "7.97 GiB", "activations": "1.20 GiB", "outside torch": "0.13 GiB"}
    assert figures(found) | terms == figures(found)
    *agree, against_model = found.checks
    assert all(check.agrees for check in agree)
    assert "0.50×" in against_model.says  # it ran on two devices


def test_layers_that_keep_differently() -> None:
    found = explained("vllm_hybrid")
    assert figures(found)["attention block"] == "528"
    assert "neither slots" in next(each.meaning for each in found.meanings if each.figure == "tokens")
    (check,) = found.checks
    assert not check.agrees
    assert "requests, not tokens, are what counts" in check.says


def test_vllm_refuses_a_length() -> None:
    found = explained("vllm_v0_refused")
    assert figures(found)["concurrency"] == "0.82×"
    (verdict,) = found.verdict
    assert verdict.startswith("REFUSED")
    assert "29,000" in verdict
    assert "at most 23,648" in verdict


def test_vllm_with_tokens() -> None:
    found = explained("vllm_v1", "llama-3.1-8b")
    assert found.version == "0.19.0"
    assert figures(found) | {"tokens": "41,408", "concurrency": "1.26×", "weights": "14.99 GiB"} == figures(found)
    assert all(check.agrees for check in found.checks)
    assert found.meanings[0].line == 2


def test_vllm_refuses_by_bytes() -> None:
    (verdict,) = explained("vllm_v1_refused").verdict
    assert "131,072 bytes per token" in verdict
    assert "0.32×" in verdict
    assert "41,440" in verdict
    assert "free 10.94 GiB" in verdict


def test_sglang() -> None:
    found = explained("sglang", "llama-3.1-8b")
    assert found.engine == "SGLang"
    assert figures(found) | {"tokens": "41,984", "weights": "15.08 GiB", "KV cache": "5.12 GiB"} == figures(found)
    assert all(check.agrees for check in found.checks)
    assert len(found.checks) == 4
    assert "does not fit" in found.verdict[0]


def test_two_engines_on_four_devices() -> None:
    """Qwen3-235B-A22B on four H100: one has twice the tokens, and both tell the truth about their bytes."""
    plan = Capacity(find_model("qwen3-235b-a22b"), PlanSettings(num_blocks=1, tensor_parallel_size=4))
    vllm = ["Available KV cache memory: 8.11 GiB", "GPU KV cache size: 178,880 tokens"]
    sglang = ["KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB"]
    assert [explain_log(lines, plan).checks[-1].agrees for lines in (vllm, sglang)] == [True, True]


def test_disagreement_is_said() -> None:
    lines = ["GPU KV cache size: 41,408 tokens, Maximum concurrency for 32,768 tokens per request: 3.00x"]
    (check,) = explain_log(lines).checks
    assert not check.agrees
    assert "1.26×, printed 3.00×" in check.says
    other = explained("vllm_v1", "qwen3-8b").checks[-1]
    assert not other.agrees
    assert "another model" in other.says


def test_models_whose_layers_keep_differently() -> None:
    plan = Capacity(find_model("gpt-oss-120b"), PlanSettings(num_blocks=1, max_num_batched_tokens=1024))
    lines = [
        "Available KV cache memory: 9.08 GiB",
        "GPU KV cache size: 262,144 tokens",
        "Maximum concurrency for 131,072 tokens per request: 2.00x",
    ]
    check = explain_log(lines, plan).checks[-1]
    assert check.agrees
    assert "hold 2.00 of 131,072" in check.says


def test_messages_may_be_wrapped_and_coloured() -> None:
    lines = [
        "\x1b[31mERROR\x1b[0m ValueError: The model's max seq len (29000) is larger than the maximum number",
        "of tokens that can be stored in KV cache (23648). Try increasing `gpu_memory_utilization`",
    ]
    assert "at most 23,648" in explain_log(lines).verdict[0]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "nothing"),
        (
            "ValueError: Free memory on device (10.5/23.52 GiB) on startup is less than desired GPU memory "
            "utilization (0.9, 21.17 GiB). Decrease GPU memory utilization",
            "10.50 GiB of the device are free",
        ),
        ("INFO # GPU blocks: 0, # CPU blocks: 2048", "nothing is left"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "mem_fraction_static"),
    ],
)
def test_other_refusals(line: str, word: str) -> None:
    assert word in explain_log([line]).verdict[0]


@pytest.mark.parametrize("lines", [[], ["hello"], ["max_num_seqs=3", "LLM engine (v0.9.1)"]])
def test_what_is_no_log(lines: list[str]) -> None:
    with pytest.raises(UnreadableLog):
        explain_log(lines)


PLAN = Capacity(find_model("gpt-oss-20b"), PlanSettings(num_blocks=1))
PIECES = [line for path in sorted(LOGS.glob("*.log")) for line in path.read_text(encoding="utf-8").splitlines()]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=60), max_size=12), st.randoms(use_true_random=False))
def test_shuffled_and_cut_lines_are_explained_or_refused(lines: list[str], random: object) -> None:
    cut = [line[: random.randrange(len(line) + 1)] for line in lines]  # type: ignore[attr-defined]
    zeros = [re.sub(r"\d", "0", line) for line in lines]
    for given_lines in (lines, cut, zeros):
        with suppress(UnreadableLog):
            assert explain_log(given_lines, PLAN).engine in ("vLLM", "SGLang")
