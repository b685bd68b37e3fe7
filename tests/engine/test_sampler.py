"""The sampler against transformers' filters, exact probabilities, and itself in other company."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from looseleaf.engine import row_copies
from looseleaf.engine.sampler import FAILED_TOKEN, SamplerOutput, sample
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.engine.sampling_rows import SamplingRows

Step = Callable[..., SamplerOutput]
GRID = 400
ALMOST_ONE = 1 - 2**-53


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def random_logits(rows: int, vocab: int, seed: int = 0, *, bfloat16: bool = False) -> torch.Tensor:
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    return logits.bfloat16().float() if bfloat16 else logits


def transformers_probabilities(logits: torch.Tensor, params: SamplingParams) -> np.ndarray:
    """transformers' own filters, in the documented order."""
    filters = LogitsProcessorList()
    filters.append(TemperatureLogitsWarper(params.temperature))
    if params.min_p:
        filters.append(MinPLogitsWarper(params.min_p))
    if params.top_k > 0:
        filters.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        filters.append(TopPLogitsWarper(params.top_p))
    return filters(torch.zeros(1, 1, dtype=torch.long), logits[None].clone())[0].softmax(-1).numpy()


filters = st.builds(
    SamplingParams,
    temperature=st.floats(0.2, 3),
    top_k=st.sampled_from([-1, 0, 1, 2, 5, 20, 1000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-6]),
    min_p=st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
)


@settings(max_examples=80, deadline=None)
@given(filters, st.integers(0, 10_000), st.sampled_from([1, 2, 17, 60]))
def test_tokens_follow_transformers_probabilities(step: Step, params: SamplingParams, seed: int, vocab: int) -> None:
    """Evenly spaced random numbers must give each token its share of them, to within one, and others none."""
    logits = random_logits(1, vocab, seed)
    numbers = (np.arange(GRID) + 0.5) / GRID
    drawn = step(logits, [params] * GRID, logits_index=[0] * GRID, numbers=numbers).token_ids
    shares = np.bincount(drawn, minlength=vocab) / GRID
    expected = transformers_probabilities(logits[0], params)
    np.testing.assert_allclose(shares, expected, atol=1.01 / GRID)
    assert not shares[expected == 0].any()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(top_k=8),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.05, temperature=1.5),
        SamplingParams(top_k=12, top_p=0.9, min_p=0.02),
    ],
    ids=["temperature", "top_k", "top_p", "min_p", "all"],
)
def test_frequencies_over_many_seeds(step: Step, params: SamplingParams) -> None:
    """Chi-square of 10,000 seeds against the exact probabilities stays below its 1e-5 quantile."""
    count = 10_000
    logits = random_logits(1, 30, 3)
    drawn = step(logits, [params] * count, seeds=range(count), logits_index=[0] * count).token_ids
    expected = transformers_probabilities(logits[0], params) * count
    observed = np.bincount(drawn, minlength=30)
    common = expected >= 5
    observed_bins = [*observed[common], observed[~common].sum()]
    expected_bins = [*expected[common], expected[~common].sum()]
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed_bins, expected_bins, strict=True) if e > 0)
    freedom = sum(e > 0 for e in expected_bins) - 1
    # Wilson and Hilferty's approximation; 4.26 is the normal quantile of 1 - 1e-5.
    limit = freedom * (1 - 2 / (9 * freedom) + 4.26 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


any_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-5, 0.5, 1.0, 100.0]),
    top_k=st.sampled_from([0, 1, 3, 40, 500]),
    top_p=st.sampled_from([1.0, 0.95, 0.3]),
    min_p=st.sampled_from([0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    logit_bias=st.sampled_from([None, {3: 4.0}]),
    min_tokens=st.sampled_from([0, 4]),
    logprobs=st.sampled_from([None, 0, 3]),
)


def assert_same(output: SamplerOutput, entry: int, alone: SamplerOutput) -> None:
    assert output.token_ids[entry] == alone.token_ids[0]
    assert (entry in output.logprobs) == (0 in alone.logprobs)
    if entry in output.logprobs:
        assert output.logprobs[entry].as_dict() == alone.logprobs[0].as_dict()


@settings(max_examples=60, deadline=None)
@given(st.data(), st.lists(any_params, min_size=1, max_size=10), st.booleans())
def test_a_row_does_not_depend_on_its_company(
    step: Step, data: st.DataObject, params: list[SamplingParams], bfloat16: bool
) -> None:
    """Bit for bit: alone, and in any selection and order, with other rows failing beside it."""
    count = len(params)
    logits = random_logits(count + 1, 300, data.draw(st.integers(0, 1000)), bfloat16=bfloat16)
    logits[count, 7] = math.nan
    order = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=2 * count))
    prompt, output = [3, 4, 5, 4], [7, 7]
    together = step(
        logits,
        [*(params[i] for i in order), params[0]],
        seeds=[*order, 0],
        logits_index=[*order, count],
        prompts=[prompt] * (len(order) + 1),
        outputs=[output] * (len(order) + 1),
    )
    assert set(together.failures) == {len(order)}
    for entry, i in enumerate(order):
        alone = step(logits[i : i + 1].clone(), [params[i]], seeds=[i], prompts=[prompt], outputs=[output])
        assert_same(together, entry, alone)


@pytest.mark.usefixtures("two_threads")
def test_a_row_does_not_depend_on_its_company_at_full_size(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real vocabulary, several slices and threads, logits with bfloat16's many equals."""
    kinds = [
        SamplingParams(temperature=0, logprobs=5),
        SamplingParams(logprobs=0),
        SamplingParams(top_k=50, temperature=0.8),
        SamplingParams(top_p=0.9, logprobs=5),
        SamplingParams(min_p=0.05, top_p=0.95),
        SamplingParams(top_k=100, top_p=0.9, repetition_penalty=1.1),
        SamplingParams(temperature=1.5),
    ]
    count = 28
    monkeypatch.setattr(row_copies, "SLICE_ELEMENTS", 5 * 49_152)
    params = [kinds[i % len(kinds)] for i in range(count)]
    logits = random_logits(count, 49_152, 1, bfloat16=True)
    prompts = [[i, 5, 5] for i in range(count)]
    together = step(logits, params, seeds=range(count), prompts=prompts)
    for i in range(count):
        alone = step(logits[i : i + 1].clone(), params[i : i + 1], seeds=[i], prompts=prompts[i : i + 1])
        assert_same(together, i, alone)


def test_slicing_changes_nothing(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    params = [SamplingParams(top_k=k, top_p=p, logprobs=2) for k in (0, 5) for p in (1.0, 0.7) for _ in range(6)]
    logits = random_logits(len(params), 100, 5)
    whole = step(logits, params, seeds=range(len(params)))
    monkeypatch.setattr(row_copies, "SLICE_ELEMENTS", 1)
    sliced = step(logits, params, seeds=range(len(params)))
    np.testing.assert_array_equal(whole.token_ids, sliced.token_ids)
    assert [whole.logprobs[i].as_dict() for i in range(24)] == [sliced.logprobs[i].as_dict() for i in range(24)]


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(top_k=3), SamplingParams(top_p=0.99)])
@pytest.mark.parametrize("number", [0.0, 2**-53, ALMOST_ONE])
def test_extreme_random_numbers_never_draw_an_impossible_token(
    step: Step, params: SamplingParams, number: float
) -> None:
    logits = torch.full((1, 1000), -torch.inf)
    logits[0, [400, 500, 600]] = torch.tensor([1.0, 1.5, -40.0])
    for lowest in (-torch.inf, torch.finfo(torch.float32).min):
        token = step(logits.clamp(min=lowest), [params], numbers=np.array([number])).token_ids[0]
        assert token in (400, 500, 600)
    certain = torch.full((1, 1000), -torch.inf)
    certain[0, 7] = -3.0
    assert step(certain, [params], numbers=np.array([number])).token_ids[0] == 7


def test_greedy_takes_the_lowest_of_equals(step: Step) -> None:
    logits = torch.zeros(3, 50)
    logits[:, [9, 30, 31]] = 2.5
    greedy, biased = SamplingParams(temperature=0), SamplingParams(temperature=0, logit_bias={1: 0.5})
    assert step(logits, [greedy, greedy, biased]).token_ids.tolist() == [9, 9, 9]


def test_many_entries_may_share_a_row(step: Step) -> None:
    logits = random_logits(2, 50, 9)
    params = [SamplingParams(temperature=0), SamplingParams(), SamplingParams(), SamplingParams(temperature=0)]
    tokens = step(logits, params, seeds=[0, 1, 2, 3], logits_index=[1, 1, 1, 0]).token_ids
    assert tokens[0] == logits[1].argmax()
    assert tokens[3] == logits[0].argmax()
    for entry in (1, 2):
        assert tokens[entry] == step(logits[1:], [params[entry]], seeds=[entry]).token_ids[0]


def test_the_logits_are_not_changed(step: Step) -> None:
    logits = random_logits(4, 50, 2)
    before = logits.clone()
    edits = {"logit_bias": {1: 5.0}, "min_tokens": 3, "repetition_penalty": 2.0, "logprobs": 4}
    kinds = [{}, {"temperature": 0}, {"top_k": 5}, {"top_p": 0.5, "min_p": 0.1}]
    step(logits, [SamplingParams.parse(kind | edits) for kind in kinds], prompts=[[1, 2, 3]] * 4)
    assert torch.equal(logits, before)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=0, logit_bias={0: 1}),
        SamplingParams(),
        SamplingParams(top_k=5),
        SamplingParams(top_p=0.5, logprobs=3),
    ],
)
def test_bad_logits_fail_their_own_row_only(step: Step, params: SamplingParams, bad: float) -> None:
    logits = random_logits(3, 50, 4)
    healthy = step(logits, [params] * 3, seeds=[1, 2, 3])
    logits[1, 20] = bad
    output = step(logits, [params] * 3, seeds=[1, 2, 3])
    assert set(output.failures) == {1}
    assert str(bad) in str(output.failures[1])
    assert output.token_ids[1] == FAILED_TOKEN
    assert output.token_ids[[0, 2]].tolist() == healthy.token_ids[[0, 2]].tolist()
    assert 1 not in output.logprobs


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_every_token_forbidden_fails(step: Step, temperature: float) -> None:
    logits = torch.full((2, 10), -torch.inf)
    logits[:, 2] = 0  # only the end-of-sequence token is possible
    params = [SamplingParams(temperature=temperature, min_tokens=m) for m in (0, 1)]
    output = step(logits, params)
    assert output.token_ids.tolist() == [2, FAILED_TOKEN]
    assert "forbidden" in str(output.failures[1])


def test_ends_are_forbidden_until_min_tokens(step: Step) -> None:
    logits = torch.zeros(1, 10)
    logits[0, [2, 5]] = torch.tensor([9.0, 8.0])
    params = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=[5])
    assert step(logits, [params], outputs=[[1]]).token_ids[0] == 0
    assert step(logits, [params], outputs=[[1, 1]]).token_ids[0] == 2
    ignoring = SamplingParams(temperature=0, min_tokens=2, stop_token_ids=[5], ignore_eos=True)
    assert step(logits, [ignoring]).token_ids[0] == 2


@settings(max_examples=30, deadline=None)
@given(st.lists(any_params, min_size=2, max_size=6), st.integers(0, 100), st.integers(1, 7))
def test_a_preempted_request_goes_on_as_if_nothing_had_happened(
    params: list[SamplingParams], seed: int, pause: int
) -> None:
    """Removed and added again elsewhere in the middle, a sequence draws the tokens it would have drawn."""
    steps = 8
    logits = random_logits(steps, 60, seed)

    def run(order: list[int], paused_at: int | None) -> list[list[int]]:
        rows = SamplingRows(2 * len(params), [2])
        seats = {i: order[i] for i in range(len(params))}
        outputs: list[list[int]] = [[] for _ in params]
        for i, seat in seats.items():
            rows.add(seat, params[i], seed=seed, sample=i, prompt=[1, 2])
        for position in range(steps):
            if position == paused_at:
                for i in seats:
                    rows.remove(seats[i])
                    seats[i] = len(params) + order[i]
                    rows.add(seats[i], params[i], seed=seed, sample=i, prompt=[1, 2], output=outputs[i])
            seat_array = np.array([seats[i] for i in range(len(params))])
            index = np.full(len(params), position)
            tokens = sample(logits, rows.select(seat_array, index)).token_ids
            rows.append(seat_array, tokens)
            for i, token in enumerate(tokens.tolist()):
                outputs[i].append(token)
        return outputs

    straight = list(range(len(params)))
    assert run(straight, None) == run(straight[::-1], pause)


def test_samples_and_seeds_and_positions_differ() -> None:
    flat = torch.zeros(1, 50_000)
    rows = SamplingRows(5, [2])
    streams: list[tuple[int, int, list[int]]] = [(1, 0, []), (1, 1, []), (2, 0, []), (1, 0, [5]), (-1, 0, [])]
    for row, (seed, sample_index, output) in enumerate(streams):
        rows.add(row, SamplingParams(), seed=seed, sample=sample_index, prompt=[1], output=output)
    tokens = sample(flat, rows.select(np.arange(5), np.zeros(5, np.int64))).token_ids
    assert len(set(tokens.tolist())) == 5


@pytest.mark.parametrize("params", [{}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}])
@pytest.mark.parametrize("scale", [1e34, -1e34])
def test_huge_logits_over_a_tiny_temperature_do_not_overflow(
    step: Step, params: dict[str, float], scale: float
) -> None:
    logits = torch.full((1, 20), 2.0 * scale)
    logits[0, 4] = 3.0 * scale
    likeliest = int(logits.argmax())
    output = step(logits, [SamplingParams.parse({"temperature": 1e-5, **params})], numbers=np.array([0.0]))
    assert output.failures == {}
    assert output.token_ids[0] == likeliest
