"""Makes golden_whole_prompt.json again: greedy tokens of transformers for the prompts of golden.json.

    python tests/data/make_golden_whole_prompt.py

transformers reads and dequantises the GGUF file by itself; the weights are rounded to bfloat16, in which they were
published, and computed with in float32 and in bfloat16. Every prompt token is attended to.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from looseleaf.models.store import resolve_model

FOLDER = Path(__file__).parent
NUM_TOKENS = 32


@torch.inference_mode()
def continued(model: transformers.PreTrainedModel, prompt: list[int]) -> dict[str, Any]:
    """The greedy tokens, and by how much each led the next best."""
    prompt_ids = torch.tensor([prompt])
    result = model.generate(
        prompt_ids,
        attention_mask=torch.ones_like(prompt_ids),
        do_sample=False,
        max_new_tokens=NUM_TOKENS,
        min_new_tokens=NUM_TOKENS,
        eos_token_id=[],
        return_dict_in_generate=True,
        output_logits=True,
    )
    best, second = torch.cat(result.logits).float().topk(2).values.unbind(-1)
    return {
        "ids": result.sequences[0, len(prompt) :].tolist(),
        "margin": [round(margin, 4) for margin in (best - second).tolist()],
    }


def main() -> None:
    path = resolve_model().path
    items = json.loads((FOLDER / "golden.json").read_text(encoding="utf-8"))["items"]
    made = [{key: item[key] for key in ("kind", "text", "prompt_ids")} for item in items]
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
        for weight in model.parameters():  # not model.bfloat16(): that rounds the rotary frequencies too
            weight.data = weight.data.bfloat16().to(dtype)
        for item in made:
            item[name] = continued(model, item["prompt_ids"])
    content = {
        "model": "smollm2-hf (Q4_1 GGUF dequantised, bf16 weights)",
        "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}: generate(do_sample=False, "
        "eos ignored, attention_mask of ones), weights rounded to bfloat16",
        "items": made,
    }
    (FOLDER / "golden_whole_prompt.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
