"""What beams hold in blocks, step by step, beside the same beams without sharing; and whether transformers agrees.

    python benchmarks/beam_memory.py [--widths 2 4 6] [--prompt-tokens 200] [--new-tokens 64] [--prompts 4]

Unshared is what the same beams would hold as requests of their own. Prompts are pieces of the project's README.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
import transformers

from export_hf import export_default_model
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.engine import Engine
from looseleaf.engine.llm import load_engine
from looseleaf.engine.outputs import RequestOutput
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.scheduler.interface import StepPlan

README = Path(__file__).parent.parent / "README.md"
PAPER = "Kwon et al. 2023, §6.3, beams: 37.6 to 55.2 % (Alpaca), 44.3 to 66.3 % (ShareGPT)"


@dataclass
class Held:
    """Blocks after each step that decodes."""

    shared: list[int] = field(default_factory=list)
    unshared: list[int] = field(default_factory=list)

    @property
    def saving(self) -> float:
        return 1 - sum(self.shared) / sum(self.unshared)


def search(engine: Engine, prompt: list[int], params: SamplingParams) -> tuple[RequestOutput, Held]:
    held = Held()
    memory = engine.memory

    def observe(plan: StepPlan) -> None:
        if plan.num_decodes:
            lengths = memory.lengths[memory.lengths > 0]
            held.shared.append(memory.num_blocks - memory.num_free_blocks)
            held.unshared.append(sum(memory.blocks_for(int(length)) for length in lengths))

    engine.on_plan = observe
    engine.add_request(prompt, params)
    outputs = []
    while engine.has_unfinished():
        outputs += [delta.request_output for delta in engine.step() if delta.request_output]
    engine.on_plan = None
    memory.audit()
    return outputs[0], held


def transformers_beams(model: Any, prompt: list[int], params: SamplingParams) -> tuple[list[list[int]], list[float]]:
    found = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=params.beam_width,
        num_return_sequences=params.n,
        max_new_tokens=params.max_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    return found.sequences[:, len(prompt) :].tolist(), found.sequences_scores.tolist()


def compared(
    engine: Engine, model: Any, prompts: list[list[int]], params: SamplingParams
) -> Iterator[tuple[Held, bool]]:
    for prompt in prompts:
        output, held = search(engine, prompt, params)
        expected, scores = transformers_beams(model, prompt, params)
        equal = [sample.token_ids for sample in output.outputs] == expected
        close = all(
            abs((sample.score or 0) - score) < 1e-3 for sample, score in zip(output.outputs, scores, strict=True)
        )
        yield held, equal and close


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", type=int, nargs="+", default=[2, 4, 6])
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--block-size", type=int, default=16)
    asked = parser.parse_args()

    # The weights of the exported model, and everything else in float32, on both sides.
    config = EngineConfig(
        dtype="bfloat16", kv_cache_dtype="float32", kv_cache_memory="512MiB", block_size=asked.block_size
    )
    engine = load_engine("smollm2-135m", config)
    model = transformers.AutoModelForCausalLM.from_pretrained(export_default_model(), dtype=torch.float32)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    text = engine.tokenizer.encode(README.read_text())
    size = asked.prompt_tokens
    prompts = [text[start : start + size] for start in range(0, asked.prompts * size, size)]

    print(
        f"{len(prompts)} prompts of {size} tokens, {asked.new_tokens} new ones, blocks of {asked.block_size}; float32"
    )
    print("width  blocks: first  middle    last    peak   unshared peak   saved   least   most   as transformers")
    for width in asked.widths:
        params = SamplingParams(beam_width=width, n=width, max_tokens=asked.new_tokens, ignore_eos=True)
        results = list(compared(engine, model, prompts, params))
        held = [each for each, _ in results]
        first, middle, last = (mean(each.shared[at] for each in held) for at in (0, asked.new_tokens // 2, -1))
        peak = mean(max(each.shared) for each in held)
        unshared = mean(max(each.unshared) for each in held)
        savings = [each.saving for each in held]
        print(
            f"{width:5}  {first:13.1f} {middle:7.1f} {last:7.1f} {peak:7.1f} {unshared:15.1f} {mean(savings):7.1%} "
            f"{min(savings):7.1%} {max(savings):6.1%}   {sum(equal for _, equal in results)} of {len(results)}"
        )
    print(PAPER)


if __name__ == "__main__":
    main()
