"""Divergence and agreement against closed forms, and reading through the paged cache against reading at once."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.engine.config import EngineConfig
from looseleaf.engine.engine import Engine
from looseleaf.engine.kv_pool import bytes_of_block, size_pool
from looseleaf.engine.quality import Agreement, TeacherForcing, compare, compare_logits
from looseleaf.errors import ConfigurationError
from looseleaf.models.decoder import CausalLM
from tiny_model import full_logits, tiny_model, tiny_tokenizer

LN = math.log


def test_equal_logits_do_not_diverge() -> None:
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(1)) * 5
    compared = compare_logits(logits, logits.clone(), torch.arange(50))
    assert float(compared.divergence.abs().max()) == 0
    assert compared.agreement.share == 1
    assert compared.baseline_perplexity == compared.candidate_perplexity


def test_a_difference_made_by_hand() -> None:
    # p = (1/4, 1/4, 1/4, 1/4) and q = (1/2, 1/6, 1/6, 1/6), from logits that also carry a constant.
    baseline = torch.full((2, 4), 7.0)
    candidate = torch.tensor([[LN(3), 0, 0, 0]]).repeat(2, 1) - 2
    compared = compare_logits(baseline, candidate, torch.tensor([0, 3]))
    expected = 1 / 4 * LN(1 / 2) + 3 / 4 * LN(6 / 4)
    assert compared.divergence.tolist() == pytest.approx([expected] * 2, abs=1e-6)
    assert compared.baseline_loss.tolist() == pytest.approx([LN(4)] * 2, abs=1e-6)
    assert compared.candidate_loss.tolist() == pytest.approx([LN(2), LN(6)], abs=1e-6)
    assert compared.candidate_perplexity == pytest.approx(math.sqrt(12))
    # The other direction is another number.
    reverse = compare_logits(candidate, baseline, torch.tensor([0, 3]))
    assert reverse.divergence.tolist() == pytest.approx([1 / 2 * LN(2) + 1 / 2 * LN(4 / 6)] * 2, abs=1e-6)


def test_a_token_that_is_impossible_for_both_adds_nothing() -> None:
    logits = torch.tensor([[0.0, -math.inf, 1.0]])
    assert compare_logits(logits, logits, torch.tensor([0])).divergence.tolist() == [0]


def test_top_tokens_are_counted() -> None:
    baseline, candidate = torch.eye(4), torch.eye(4)
    candidate[1] = torch.tensor([0.0, 0.0, 0.0, 1.0])
    compared = compare_logits(baseline, candidate, torch.zeros(4, dtype=torch.long))
    assert compared.same_top.tolist() == [True, False, True, True]
    assert (compared.agreement.count, compared.agreement.total) == (3, 4)


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    [(95, 100, 0.8882, 0.9785), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_intervals_are_wilsons(count: int, total: int, low: float, high: float) -> None:
    assert Agreement(count, total).interval == pytest.approx((low, high), abs=1e-4)


@given(window=st.integers(1, 60), chunk=st.integers(1, 70), data=st.data())
def test_steps_read_each_position_once_and_in_order(window: int, chunk: int, data: st.DataObject) -> None:
    decodes = data.draw(st.integers(0, window))
    steps = TeacherForcing(window=window, chunk=chunk, decodes=decodes).steps()
    assert [position for start, stop in steps for position in range(start, stop)] == list(range(window))
    assert all(stop - start <= chunk for start, stop in steps)
    assert all(stop - start == 1 for start, stop in steps[len(steps) - decodes :])


@given(length=st.integers(11, 200), limit=st.integers(1, 300))
def test_windows_come_from_all_over_the_text(length: int, limit: int) -> None:
    reading = TeacherForcing(window=10, chunk=4, decodes=2)
    windows = reading.cut(range(length), limit)
    assert len(windows) == min(max(1, round(limit / 10)), (length - 1) // 10)
    for window in windows:
        assert window.tolist() == list(range(int(window[0]), int(window[0]) + 11))
    starts = windows[:, 0]
    assert bool((starts.diff() >= 10).all())


def test_a_text_that_is_too_short_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="10 tokens, but a window takes 10"):
        TeacherForcing(window=10, chunk=4, decodes=2).cut(range(10), 100)


@pytest.mark.parametrize("changes", [{"window": 0}, {"chunk": 0}, {"decodes": -1}, {"decodes": 1025}])
def test_readings_that_make_no_sense(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        TeacherForcing(**changes)


def reading_engine(model: CausalLM, reading: TeacherForcing, **settings: object) -> Engine:
    config = EngineConfig.parse({"dtype": "float32", "block_size": 4} | settings)
    config = reading.engine_config(config, bytes_of_block(model.config, config))
    return Engine(model, tiny_tokenizer(), config, size_pool(model.config, config, available=0))


@pytest.mark.parametrize(
    "reading",
    [
        TeacherForcing(window=24, chunk=7, decodes=5, windows_at_once=2),
        TeacherForcing(window=24, chunk=24, decodes=0, windows_at_once=3),
        TeacherForcing(window=24, chunk=5, decodes=24, windows_at_once=1),
    ],
)
def test_reading_through_the_paged_cache_is_reading_the_whole_window(reading: TeacherForcing) -> None:
    model, other = tiny_model(), tiny_model(1)
    tokens = torch.randint(0, 256, (3 * 24 + 1,), generator=torch.Generator().manual_seed(3)).tolist()
    windows = reading.cut(tokens, 1000)
    told: list[int] = []
    engines = [reading_engine(each, reading) for each in (model, other)]
    compared = compare(engines[0], engines[1], windows, reading, lambda: told.append(1))
    assert len(told) == -(-3 // reading.windows_at_once) * len(reading.steps())
    expected = [
        compare_logits(full_logits(model, window[:-1].tolist()), full_logits(other, window[:-1].tolist()), window[1:])
        for window in windows
    ]
    for name in ("divergence", "baseline_loss", "candidate_loss"):
        found = getattr(compared, name).sort().values
        wanted = torch.cat([getattr(each, name) for each in expected]).sort().values
        torch.testing.assert_close(found, wanted, atol=2e-4, rtol=2e-4)
    assert compared.agreement.count == sum(each.agreement.count for each in expected)


def test_an_engine_does_not_diverge_from_its_like() -> None:
    reading = TeacherForcing(window=20, chunk=6, decodes=4, windows_at_once=2)
    windows = reading.cut([i * 7 % 250 for i in range(81)], 80)
    engines = [reading_engine(tiny_model(), reading, block_size=size) for size in (4, 4)]
    compared = compare(engines[0], engines[1], windows, reading)
    assert float(compared.divergence.max()) == 0
    assert compared.agreement.share == 1


def test_a_coarser_cache_diverges_a_little() -> None:
    reading = TeacherForcing(window=20, chunk=6, decodes=4, windows_at_once=2)
    windows = reading.cut([i * 7 % 250 for i in range(81)], 80)
    engines = [reading_engine(tiny_model(), reading, kv_cache_dtype=dtype) for dtype in ("float32", "bfloat16")]
    compared = compare(engines[0], engines[1], windows, reading)
    assert 0 < float(compared.divergence.mean()) < 0.01
