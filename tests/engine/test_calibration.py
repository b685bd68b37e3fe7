"""Measured steps say what they computed, and leave the engine as it was."""

from __future__ import annotations

from looseleaf.engine.calibration import BATCHES, DECODE_STEPS, measure_steps
from tiny_model import tiny_engine, tiny_model

MODEL = tiny_model()


def test_every_sample_says_what_its_step_computed() -> None:
    engine = tiny_engine(MODEL, num_blocks=40, block_size=8, max_num_seqs=16, max_num_batched_tokens=64)
    samples = measure_steps(engine, most_seconds=0.0)
    assert not engine.has_unfinished()
    assert engine.on_plan is None
    engine.memory.audit()
    for step in samples:
        assert step.seconds > 0
        assert 0 <= step.num_sampled <= step.num_seqs <= step.num_tokens <= 64
        assert step.num_tokens <= step.context_tokens <= step.attention_pairs
    decodes = [step for step in samples if step.num_tokens == step.num_seqs]
    assert {step.num_seqs for step in decodes} >= {1, 4}
    assert all(step.num_sampled == step.num_seqs and step.attention_pairs == step.context_tokens for step in decodes)
    first = next(step for step in samples if step.num_tokens > step.num_seqs)
    _, prompt = BATCHES[0]
    assert (first.num_tokens, first.attention_pairs) == (prompt, prompt * (prompt + 1) // 2)
    alone = next(step for step in decodes if step.num_seqs == 1)
    assert prompt < alone.context_tokens <= prompt + DECODE_STEPS
