"""Rotary embedding against transformers, and by what it is for: scores depend on distance alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from looseleaf.models.hf_config import config_from_hf
from looseleaf.models.rope import FrequencyDivisors, RotaryTable, plain_frequencies

HEAD_DIM, MAX_POSITIONS = 32, 4096
SCALINGS = {
    "linear": {"factor": 3.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn with its own betas": {
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "beta_fast": 8.0,
        "beta_slow": 2.0,
        "attention_factor": 1.3,
    },
}


def _oracle(kind: str, theta: float) -> LlamaConfig:
    parameters = {"rope_type": kind.split()[0], "rope_theta": theta, **SCALINGS.get(kind, {})}
    return LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters=parameters,
        architectures=["LlamaForCausalLM"],
    )


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("kind", list(SCALINGS))
def test_scaled_frequencies_are_those_of_transformers(kind, theta):
    oracle = _oracle(kind, theta)
    expected, attention_factor = ROPE_INIT_FUNCTIONS[kind.split()[0]](oracle, device="cpu")
    scaling = config_from_hf(oracle.to_dict()).rope_scaling
    assert scaling is not None
    torch.testing.assert_close(scaling.frequencies(HEAD_DIM, theta), expected, rtol=1e-6, atol=0)
    assert scaling.attention_factor == pytest.approx(attention_factor)
    assert not torch.allclose(expected, plain_frequencies(HEAD_DIM, theta))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["default", *SCALINGS])
def test_rotation_is_that_of_transformers(kind, dtype):
    oracle = _oracle(kind, 10_000.0)
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(50, 3, HEAD_DIM, generator=generator).to(dtype)
    positions = torch.randint(0, MAX_POSITIONS, (50,), generator=generator)
    cos, sin = LlamaRotaryEmbedding(oracle)(heads, positions[None])
    expected, _ = apply_rotary_pos_emb(heads[None], heads[None], cos, sin, unsqueeze_dim=2)
    table = RotaryTable(HEAD_DIM, MAX_POSITIONS, 10_000.0, config_from_hf(oracle.to_dict()).rope_scaling, dtype)
    rotated = table.at(positions).apply(heads)
    if kind == "default":
        assert torch.equal(rotated, expected[0])
    else:  # a last bit of a scaled frequency is multiplied by the position
        tolerance = 2e-3 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(rotated, expected[0], rtol=0, atol=tolerance)


@given(query=st.integers(0, 2000), key=st.integers(0, 2000), shift=st.integers(0, 2000))
@settings(max_examples=50, deadline=None)
def test_scores_depend_on_distance_alone_and_lengths_are_kept(query, key, shift):
    table = RotaryTable(HEAD_DIM, MAX_POSITIONS, 10_000.0, None, torch.float32)
    q, k = torch.randn(2, 1, 1, HEAD_DIM, generator=torch.Generator().manual_seed(1))

    def rotated(heads: torch.Tensor, position: int) -> torch.Tensor:
        return table.at(torch.tensor([position])).apply(heads)

    here = (rotated(q, query) * rotated(k, key)).sum()
    there = (rotated(q, query + shift) * rotated(k, key + shift)).sum()
    torch.testing.assert_close(here, there, rtol=0, atol=1e-2)
    torch.testing.assert_close(rotated(q, query).norm(), q.norm())


def test_a_table_costs_what_is_asked_for_and_not_what_is_claimed():
    table = RotaryTable(HEAD_DIM, 1 << 24, 10_000.0, None, torch.float32)
    assert len(table._table) == 0
    table.at(torch.tensor([5, 700]))
    assert len(table._table) <= 1024
    table.at(torch.tensor([20_000]))
    assert len(table._table) < 32_000


@given(asked=st.lists(st.integers(0, MAX_POSITIONS - 1), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_a_rotation_does_not_depend_on_what_was_asked_for_before(asked):
    whole = RotaryTable(HEAD_DIM, MAX_POSITIONS, 10_000.0, None, torch.bfloat16)
    expected = whole.at(torch.arange(MAX_POSITIONS))
    growing = RotaryTable(HEAD_DIM, MAX_POSITIONS, 10_000.0, None, torch.bfloat16)
    for position in asked:
        rotation = growing.at(torch.tensor([position]))
        assert torch.equal(rotation.cos[0], expected.cos[position])
        assert torch.equal(rotation.signed_sin[0], expected.signed_sin[position])


def test_divisors_divide_the_frequencies():
    divisors = tuple(float(i) for i in range(1, HEAD_DIM // 2 + 1))
    scaled = FrequencyDivisors(divisors).frequencies(HEAD_DIM, 10_000.0)
    torch.testing.assert_close(scaled * torch.tensor(divisors), plain_frequencies(HEAD_DIM, 10_000.0))
