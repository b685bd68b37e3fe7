"""What published models keep and weigh, against values derived by hand and counts that their publishers give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from looseleaf.plan.arithmetic import ModelArithmetic
from looseleaf.plan.known_models import find_model
from looseleaf.plan.kv_layout import KVLayout
from looseleaf.plan.shape import ModelShape
from plan.published import KEPT, PARAMETERS

Published = Callable[[str], ModelShape]
GIB = 2**30


def test_every_published_configuration_has_its_value(configs: Path) -> None:
    assert {path.stem for path in configs.glob("*.json")} == KEPT.keys()


@pytest.mark.parametrize("name", KEPT)
def test_what_a_token_and_a_request_keep(published: Published, name: str) -> None:
    arithmetic = ModelArithmetic(published(name))
    layout = KVLayout(arithmetic)
    assert (layout.bytes_per_token, layout.slope, layout.state_bytes) == KEPT[name]
    assert (arithmetic.kv_bytes_per_token, arithmetic.kv_slope, arithmetic.state_bytes) == KEPT[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(published: Published, name: str) -> None:
    assert ModelArithmetic(published(name)).parameters.total == PARAMETERS[name]


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [
        ("meta-llama/Meta-Llama-3-8B", 131_072),
        ("llama-3.1-70b", 327_680),
        ("qwen2.5-7b-instruct", 57_344),
        ("qwen3-8b", 147_456),
        ("microsoft/Phi-3-mini-4k-instruct", 393_216),
        ("microsoft/Phi-3-mini-128k-instruct", 393_216),
        ("falcon-7b", 8_192),
        ("falcon-40b", 60 * 2 * 8 * 64 * 2),
        ("deepseek-v3", 70_272),
        ("opt-13b", 800 * 1024),
        ("smollm2-135m", 30 * 2 * 3 * 64 * 2),
    ],
)
def test_bytes_per_token_of_known_names(name: str, nbytes: int) -> None:
    assert ModelArithmetic(find_model(name)).kv_bytes_per_token == nbytes


@pytest.mark.parametrize(
    "name",
    [
        "openai/gpt-oss-20b",
        "openai/gpt-oss-120b",
        "qwen3-30b-a3b",
        "deepseek-v3",
        "qwen3-235b-a22b",
        "kimi-k2-instruct",
    ],
)
def test_a_known_name_is_the_published_configuration(published: Published, name: str) -> None:
    from_file = next(key for key in KEPT if key.split("--")[-1].lower() == name.split("/")[-1].lower())
    one, other = ModelArithmetic(find_model(name)), ModelArithmetic(published(from_file))
    assert one.shape.layers == other.shape.layers
    assert one.weight_bytes == other.weight_bytes


def test_latents_and_few_heads_are_replicated_over_ranks(published: Published) -> None:
    deepseek = published("deepseek-ai--DeepSeek-V3")
    assert {ModelArithmetic(deepseek, tensor_parallel=n).kv_bytes_per_token for n in (1, 2, 8, 16)} == {70_272}
    llama = published("meta-llama--Meta-Llama-3.1-70B")
    per_rank = {n: ModelArithmetic(llama, tensor_parallel=n).kv_bytes_per_token for n in (1, 4, 8, 16)}
    assert per_rank == {1: 327_680, 4: 81_920, 8: 40_960, 16: 40_960}  # 8 key-value heads: one each on 16


def test_one_request_of_llama_3_8b() -> None:
    assert KVLayout(ModelArithmetic(find_model("meta-llama/Meta-Llama-3-8B"))).request_bytes(8192) == 1024 * 2**20


def test_one_request_of_gpt_oss_120b(published: Published) -> None:
    layout = KVLayout(ModelArithmetic(published("openai--gpt-oss-120b")), step_tokens=1024)
    # 18 layers keep 131,072 tokens; 18 keep what 1,024 tokens with windows of 128 see: 1,151, so 72 blocks, and one.
    assert layout.request_bytes(131_072) == 18 * 131_072 * 2048 + 18 * 73 * 16 * 2048
    assert round(layout.request_bytes(131_072) / GIB, 2) == 4.54


def test_active_parameters_of_mixtures(published: Published) -> None:
    """What names and model cards say, in billions: half of the operations of a token, head and embedding included."""
    active = {"Qwen--Qwen3-235B-A22B": 22, "Qwen--Qwen3-30B-A3B": 3.3, "deepseek-ai--DeepSeek-V3": 37}
    active |= {
        "moonshotai--Kimi-K2-Instruct": 32,
        "mistralai--Mixtral-8x7B-v0.1": 12.9,
        "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 3.6,
    }
    active |= {"google--gemma-4-26B-A4B": 3.8, "meta-llama--Llama-4-Scout-17B-16E-Instruct": 17}
    for name, billions in active.items():
        arithmetic = ModelArithmetic(published(name))
        heads = arithmetic.flops_per_sample / 2 * (1 if arithmetic.shape.tied else 2)
        assert (arithmetic.flops_per_token / 2 + heads) / 1e9 == pytest.approx(billions, rel=0.03), name


def test_weights_in_the_checkpoints_own_formats(published: Published) -> None:
    """Sizes of the published files, in GiB: gpt-oss 12.8 and 60.8, DeepSeek-V3 about one byte per parameter."""
    assert ModelArithmetic(published("openai--gpt-oss-20b")).weight_bytes / GIB == pytest.approx(12.8, abs=0.05)
    assert ModelArithmetic(published("openai--gpt-oss-120b")).weight_bytes / GIB == pytest.approx(60.8, abs=0.05)
    v3 = ModelArithmetic(published("deepseek-ai--DeepSeek-V3"))
    assert v3.weight_bytes / v3.parameters.total == pytest.approx(1.0, abs=0.01)
    gemma = ModelArithmetic(published("nvidia--Gemma-4-31B-IT-NVFP4"))
    assert gemma.formats["mlp"] == "nvfp4"
    assert gemma.formats["attention"] == "bfloat16"  # left out, layer by layer
    assert gemma.kv_format.name == "fp8"


def test_inert_windows_are_named(published: Published) -> None:
    assert any("sliding_window 131,072 is inert" in note for note in published("qwen2.5-7b-instruct").notes)
