"""Penalties, bias and forbidden ends, against transformers and against a plain loop over the text."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from looseleaf.engine.logit_edits import LogitEdits
from looseleaf.engine.sampling_params import SamplingParams

VOCAB = 40
token_lists = st.lists(st.integers(0, VOCAB - 1), max_size=30)
seeds = st.integers(0, 2**32 - 1)


def logits_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, VOCAB).astype(np.float32)


def edited(params: SamplingParams, prompt: list[int], output: list[int], logits: np.ndarray) -> np.ndarray:
    """Half of the output known at the start (a resumed request), the rest appended token by token."""
    half = len(output) // 2
    edits = LogitEdits(params, [0, 1], prompt, output[:half])
    for token_id in output[half:]:
        if edits.counts is not None:
            edits.counts.append(token_id)
    result = logits.copy()
    edits.apply(result, len(output))
    return result


@given(seeds, token_lists.filter(bool), token_lists, st.floats(0.1, 5))
def test_repetition_penalty_is_that_of_transformers(
    seed: int, prompt: list[int], output: list[int], penalty: float
) -> None:
    logits = logits_of(seed)
    oracle = RepetitionPenaltyLogitsProcessor(penalty)
    expected = oracle(torch.tensor([prompt + output]), torch.from_numpy(logits)[None].clone())[0].numpy()
    actual = edited(SamplingParams(repetition_penalty=penalty), prompt, output, logits)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@given(seeds, token_lists, token_lists, st.floats(-2, 2), st.floats(-2, 2), st.floats(0.5, 2))
def test_all_penalties_against_a_loop_over_the_text(
    seed: int, prompt: list[int], output: list[int], presence: float, frequency: float, repetition: float
) -> None:
    params = SamplingParams(presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition)
    logits = logits_of(seed)
    expected = logits.astype(np.float64)
    for token_id in set(prompt) | set(output):
        expected[token_id] *= repetition if expected[token_id] < 0 else 1 / repetition
    for token_id in output:
        expected[token_id] -= frequency
    for token_id in set(output):
        expected[token_id] -= presence
    np.testing.assert_allclose(edited(params, prompt, output, logits), expected, rtol=1e-5, atol=1e-4)


@given(seeds, st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100)), st.integers(0, 8), token_lists)
def test_bias_and_forbidden_ends(seed: int, bias: dict[int, float], min_tokens: int, output: list[int]) -> None:
    logits = logits_of(seed)
    expected = logits.copy()
    for token_id, value in bias.items():
        expected[token_id] += np.float32(value)
    if len(output) < min_tokens:
        expected[[0, 1]] = -np.inf
    params = SamplingParams(logit_bias=bias, min_tokens=min_tokens)
    np.testing.assert_array_equal(edited(params, [], output, logits), expected)
