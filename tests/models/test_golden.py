"""The default model against greedy tokens of transformers, from its GGUF file.

Two sets. `golden.json` was made with the attention mask that transformers infers from its padding token, and
SmolLM2 pads with `<|im_end|>`: the prompts' own `<|im_end|>` tokens were hidden and took up no position, so
the prompt that was really continued is the one without them (its ten best first logits are of the whole
prompt). `golden_whole_prompt.json` continues the same prompts with every token attended to;
`data/make_golden_whole_prompt.py` makes it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from looseleaf.kernels import native
from looseleaf.models.config import ModelConfig
from looseleaf.models.interface import Decoder
from looseleaf.models.loader import load_model
from looseleaf.models.native_decoder import NativeCausalLM

DATA = Path(__file__).parents[1] / "data"
PADDING = 2
NEAR_TIE = 0.25
"""Twice the spacing of bfloat16 logits of this size: what rounding both of two logits can move their difference by."""


@dataclass(frozen=True)
class Golden:
    prompt: list[int]
    recorded: dict[str, Any]


def golden(name: str) -> list[Golden]:
    items = json.loads((DATA / name).read_text())["items"]
    hidden = {PADDING} if name == "golden.json" else set()
    return [Golden([token for token in item["prompt_ids"] if token not in hidden], item) for item in items]


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> Callable[..., tuple[Decoder, ModelConfig]]:
    loaded: dict[tuple[torch.dtype, str], tuple[Decoder, ModelConfig]] = {}

    def load(dtype: torch.dtype, kernels: str = "reference") -> tuple[Decoder, ModelConfig]:
        if kernels == "native" and not native.is_available():
            pytest.skip("the native extension was not built")
        if (dtype, kernels) not in loaded:
            model, config = load_model(smollm2_gguf, dtype)
            loaded[dtype, kernels] = (model if kernels == "reference" else NativeCausalLM.from_reference(model), config)
        return loaded[dtype, kernels]

    return load


def test_the_default_model_is_what_its_file_says(smollm2):
    _, config = smollm2(torch.float32)
    assert (config.architecture, config.num_layers, config.hidden_size) == ("LlamaForCausalLM", 30, 576)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert config.tie_word_embeddings
    assert config.eos_token_ids == (2,)
    assert config.kv_bytes_per_token(torch.bfloat16) == 23_040


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("name", ["golden.json", "golden_whole_prompt.json"])
def test_float32_repeats_the_golden_tokens_one_by_one(name, kernels, smollm2, paged_run):
    model, _ = smollm2(torch.float32, kernels)
    items = golden(name)
    run = paged_run(model, [list(item.prompt) for item in items], block_size=16, room=32)
    outputs = run.generate_greedily(32)
    assert outputs == [item.recorded["fp32"]["ids"] for item in items]
    for item, logits in zip(items, run.logits(), strict=True):
        best, second = logits[len(item.prompt) - 1 :].topk(2).values.unbind(-1)
        expected = torch.tensor(item.recorded["fp32"]["margin"])
        torch.testing.assert_close(best - second, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_float32_gives_the_recorded_logits_of_the_first_token(kernels, smollm2, paged_run):
    model, _ = smollm2(torch.float32, kernels)
    items = golden("golden.json")
    outputs = paged_run(model, [item.recorded["prompt_ids"] for item in items], block_size=16).run_whole()
    for item, logits in zip(items, outputs, strict=True):
        tokens, expected = zip(*item.recorded["fp32"]["last_top10"], strict=True)
        torch.testing.assert_close(logits[-1][list(tokens)], torch.tensor(expected), rtol=0, atol=1e-3)


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("name", ["golden.json", "golden_whole_prompt.json"])
def test_bfloat16_parts_from_the_golden_tokens_only_at_near_ties(name, kernels, smollm2, paged_run):
    """The golden tokens are fed whatever the model would have said, so that all 32 are compared.

    Where another token comes first here, two leads must be near ties: the recorded one over the runner-up, and ours
    over the golden token. Both may be 0.25 at most, not below it: at one place these differ by exactly 0.25, which is
    two steps of bfloat16 logits, one for the rounding of each.
    """
    model, _ = smollm2(torch.bfloat16, kernels)
    items = golden(name)
    fed = [item.prompt + item.recorded["bf16"]["ids"][:-1] for item in items]
    for item, logits in zip(items, paged_run(model, fed, block_size=16).run_whole(), strict=True):
        recorded = item.recorded["bf16"]
        scores = logits[len(item.prompt) - 1 :]
        preferred = scores.amax(-1) - scores[range(32), recorded["ids"]]
        for lead, margin in zip(preferred.tolist(), recorded["margin"], strict=True):
            assert lead == 0 or (lead <= NEAR_TIE and margin <= NEAR_TIE)
