"""The main job end to end: the default model, from text or token ids to transformers' greedy tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from looseleaf import LLM, SamplingParams
from looseleaf.models.store import DEFAULT_MODEL

Cli = Callable[..., tuple[int, str, str]]

ITEMS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "golden_whole_prompt.json").read_text(encoding="utf-8")
)["items"]


@pytest.mark.usefixtures("smollm2_gguf")
def test_generate_prints_the_golden_continuation(cli: Cli) -> None:
    (item,) = (item for item in ITEMS if item["kind"] == "raw")
    options = ["--dtype", "float32", "--temperature", 0, "--max-tokens", 32, "--ignore-eos", "--max-model-len", 256]
    code, output, _ = cli("generate", "--model", DEFAULT_MODEL, *options, "--raw", "--json", "--prompt", item["text"])
    assert code == 0
    (line,) = map(json.loads, output.splitlines())
    assert line["prompt_token_ids"] == item["prompt_ids"]
    assert line["outputs"][0]["token_ids"] == item["fp32"]["ids"]


def test_a_batch_of_text_tokens_and_messages_gives_the_golden_tokens(smollm2_gguf: Path) -> None:
    llm = LLM(smollm2_gguf, dtype="float32", max_model_len=256)
    prompts: list[Any] = []
    for item in ITEMS:
        messages = [{"role": "user", "content": item["text"]}]
        prompts += [item["prompt_ids"], messages if item["kind"] == "chat" else item["text"]]
    results = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=32, ignore_eos=True))
    for i, item in enumerate(ITEMS):
        for result in results[2 * i : 2 * i + 2]:
            assert result.prompt_token_ids == item["prompt_ids"]
            assert result.outputs[0].token_ids == item["fp32"]["ids"]
