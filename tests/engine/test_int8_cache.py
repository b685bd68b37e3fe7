"""The int8 KV cache: twice the sequences in the same bytes, and answers that do not depend on company."""

from __future__ import annotations

import pytest

from looseleaf.engine.config import EngineConfig
from looseleaf.engine.engine import Engine
from looseleaf.engine.kv_pool import size_pool
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.models.decoder import CausalLM
from tiny_model import tiny_model, tiny_tokenizer

PROMPTS = [
    [(start * 31 + i * i) % 250 for i in range(length)] for start, length in enumerate((3, 50, 17, 33, 1, 64, 9))
]


def engine(model: CausalLM, **settings: object) -> Engine:
    config = EngineConfig.parse(
        {"dtype": "float32", "kv_cache_dtype": "int8", "kv_cache_memory": "1MiB", "max_model_len": 128} | settings
    )
    return Engine(model, tiny_tokenizer(), config, size_pool(model.config, config, available=0))


def generate(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """Greedy answers of 12 tokens to prompts that run together."""
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    ids = [engine.add_request(prompt, params) for prompt in prompts]
    outputs = {}
    while engine.has_unfinished():
        outputs |= {d.request_id: d.request_output for d in engine.step() if d.request_output is not None}
    return [outputs[each].outputs[0].token_ids for each in ids]


@pytest.mark.parametrize("settings", [{}, {"block_size": 3}, {"max_num_batched_tokens": 7}, {"max_num_seqs": 2}])
def test_tokens_are_the_same_in_any_company(settings: dict[str, int]) -> None:
    model = tiny_model(head_dim=32, num_heads=4, num_kv_heads=2)
    alone = [generate(engine(model), [prompt])[0] for prompt in PROMPTS]
    assert generate(engine(model, **settings), PROMPTS) == alone


def test_the_same_bytes_hold_twice_the_sequences() -> None:
    model = tiny_model(head_dim=64, num_heads=4, num_kv_heads=2)
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    at_once, blocks = {}, {}
    for dtype in ("bfloat16", "int8"):
        running = engine(model, kv_cache_dtype=dtype, kv_cache_memory="1MiB", max_num_seqs=64, watermark=0.0)
        for start in range(64):
            running.add_request([start] * 64, params)
        running.step()
        blocks[dtype] = running.pool.num_blocks
        at_once[dtype] = running.scheduler.num_running
        assert running.kv_cache.num_blocks == running.pool.num_blocks
    # A block of 16 tokens: 2 × 2 layers × 2 heads × (64 × 2 bytes, or 64 + a scale of 2).
    assert blocks == {"bfloat16": 2**20 // (16 * 1024), "int8": 2**20 // (16 * 528)} == {"bfloat16": 64, "int8": 124}
    assert at_once["int8"] == pytest.approx(2 * at_once["bfloat16"], rel=0.05)
