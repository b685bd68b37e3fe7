"""Reported logprobs are those of the raw logits, ranked in one fixed order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.engine import row_copies
from looseleaf.engine.logprobs import prompt_logprobs, token_logprobs
from looseleaf.engine.sampler import SamplerOutput
from looseleaf.engine.sampling_params import SamplingParams


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 40), st.integers(0, 50), st.booleans())
def test_against_a_float64_log_softmax_and_a_full_sort(seed: int, vocab: int, k: int, coarse: bool) -> None:
    generator = np.random.default_rng(seed)
    logits = generator.normal(0, 3, (3, vocab)).astype(np.float32)
    if coarse:
        logits = np.round(logits)
    token_ids = generator.integers(0, vocab, 4)
    index = generator.integers(0, 3, 4)
    results = token_logprobs(torch.from_numpy(logits), index, token_ids, np.full(4, k, np.int32))
    exact = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    for result, row, token_id in zip(results, index, token_ids, strict=True):
        order = sorted(range(vocab), key=lambda i: (-logits[row, i], i))
        assert result.token_id == token_id
        assert result.logprob == pytest.approx(exact[row, token_id], abs=1e-5)
        assert result.rank == 1 + sum(logits[row] > logits[row, token_id])
        assert result.top_ids.tolist() == order[:k]
        np.testing.assert_allclose(result.top_logprobs, exact[row][order[:k]], atol=1e-5)


def test_dictionary_has_the_token_and_the_most_likely_with_text() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0]])
    (outside,) = prompt_logprobs(logits, np.array([0]), 2)
    entries = outside.as_dict(lambda token_id: f"<{token_id}>")
    assert list(entries) == [0, 1, 3]
    assert [entry.rank for entry in entries.values()] == [4, 1, 2]
    assert [entry.decoded_token for entry in entries.values()] == ["<0>", "<1>", "<3>"]
    (inside,) = prompt_logprobs(logits, np.array([3]), 2)
    assert {token_id: entry.rank for token_id, entry in inside.as_dict().items()} == {3: 2, 1: 1}


def test_sampled_logprobs_ignore_what_the_request_changes(step: Callable[..., SamplerOutput]) -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    params = SamplingParams(temperature=0.1, logit_bias={4: 50.0}, top_k=2, repetition_penalty=3.0, logprobs=5)
    output = step(logits, [params], prompts=[[1, 2, 3]])
    assert output.token_ids[0] == 4
    assert output.logprobs[0].logprob == pytest.approx(float(logits.log_softmax(-1)[0, 4]), abs=1e-6)
    assert output.logprobs[0].top_ids.tolist() == logits.topk(5).indices[0].tolist()


def test_logprobs_only_for_those_who_asked_or_rank_samples(step: Callable[..., SamplerOutput]) -> None:
    params = [SamplingParams(), SamplingParams(logprobs=0), SamplingParams(n=1, best_of=3), SamplingParams(n=3)]
    output = step(torch.zeros(4, 20), params)
    assert set(output.logprobs) == {1, 2}


def test_prompt_logprobs_of_a_block_equal_those_of_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(9, 33, generator=torch.Generator().manual_seed(1))
    targets = np.arange(9)
    whole = [result.as_dict() for result in prompt_logprobs(logits, targets, 3)]
    monkeypatch.setattr(row_copies, "SLICE_ELEMENTS", 1)
    assert [result.as_dict() for result in prompt_logprobs(logits, targets, 3)] == whole
    for i in range(9):
        (single,) = prompt_logprobs(logits[i : i + 1], targets[i : i + 1], 3)
        assert single.as_dict() == whole[i]
