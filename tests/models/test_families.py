"""Every family computes what transformers computes, however its tokens are batched and wherever they lie."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from looseleaf.models.loader import load_config, load_model

TOLERANCE = {"rtol": 0, "atol": 1e-4}


def test_a_padding_free_batch_gives_the_logits_of_transformers(family, checkpoint, paged_run, sequences):
    oracle = checkpoint(family)
    model, _ = load_model(oracle.folder, torch.float32)
    for tokens, logits in zip(sequences, paged_run(model, sequences).run_whole(), strict=True):
        torch.testing.assert_close(logits, oracle.logits(tokens), **TOLERANCE)


def test_chunks_mixed_with_decodes_give_the_logits_of_transformers(family, checkpoint, paged_run, sequences):
    oracle = checkpoint(family)
    model, _ = load_model(oracle.folder, torch.float32)
    run = paged_run(model, sequences, block_size=3, seed=1)
    for tokens, logits in zip(sequences, run.run_in_pieces(np.random.default_rng(5)), strict=True):
        torch.testing.assert_close(logits, oracle.logits(tokens), **TOLERANCE)


@given(seed=st.integers(0, 2**32 - 1), block_size=st.integers(1, 17))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("name", ["llama3", "mistral", "qwen3"])
def test_any_schedule_gives_the_logits_of_transformers(name, seed, block_size, checkpoint, paged_run):
    oracle = checkpoint(name)
    model, _ = load_model(oracle.folder, torch.float32)
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 30, size=generator.integers(1, 6))
    sequences = [generator.integers(0, 96, length).tolist() for length in lengths]
    run = paged_run(model, sequences, block_size=block_size, seed=seed)
    for tokens, logits in zip(sequences, run.run_in_pieces(generator), strict=True):
        torch.testing.assert_close(logits, oracle.logits(tokens), **TOLERANCE)


def test_the_logits_depend_on_more_than_the_tolerance(family, checkpoint, sequences):
    """Guards the tests above: with logits this far apart, agreement within 1e-4 means something."""
    logits = checkpoint(family).logits(sequences[-1])
    assert logits.std() > 0.1
    assert (logits[1:] - logits[:-1]).abs().amax(-1).min() > 0.1


def test_logits_are_float32_and_the_hidden_state_has_the_models_dtype(checkpoint, paged_run, sequences):
    model, config = load_model(checkpoint("qwen3").folder, torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert all(logits.dtype == torch.float32 for logits in paged_run(model, sequences).run_whole())
    assert model.logits(torch.zeros(2, config.hidden_size, dtype=torch.bfloat16)).shape == (2, config.vocab_size)


def test_bfloat16_gives_the_logits_of_transformers_in_bfloat16(family, checkpoint, paged_run, sequences):
    """Up to the rounding of single values: attention sums in float32 here and in bfloat16 there."""
    reference = checkpoint(family)
    model, _ = load_model(reference.folder, torch.bfloat16)
    tokens = sequences[2]
    oracle = type(reference.oracle).from_pretrained(reference.folder, dtype=torch.bfloat16, attn_implementation="eager")
    with torch.inference_mode():
        expected = oracle(torch.tensor([tokens])).logits[0].float()
    (logits,) = paged_run(model, [tokens]).run_whole()
    exact = reference.logits(tokens)
    assert (logits - exact).std() <= 1.2 * (expected - exact).std()


def test_a_configuration_loads_without_its_weights(family, checkpoint):
    folder = checkpoint(family).folder
    assert load_config(folder) == load_model(folder, torch.float32)[1]
