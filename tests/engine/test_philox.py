"""Counter-based random numbers: the published test vectors, uniformity, independence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.engine.philox import derived_seed, philox_4x32, uniform

PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
VECTORS = [
    ((0,) * 6, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 6, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


def words(*values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value], np.uint64) for value in values)


@pytest.mark.parametrize(("inputs", "expected"), VECTORS)
def test_known_answers_of_the_authors_library(inputs: tuple[int, ...], expected: tuple[int, ...]) -> None:
    counter, key = inputs[:4], inputs[4:]
    assert tuple(int(word[0]) for word in philox_4x32(words(*counter), words(*key))) == expected


uint64s = st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(uint64s, st.integers(0, 2**32 - 1), uint64s), min_size=1, max_size=20))
def test_a_number_depends_on_its_own_arguments_alone(rows: list[tuple[int, int, int]]) -> None:
    together = uniform(*np.array(rows, np.uint64).T)
    for row, number in zip(rows, together, strict=True):
        assert uniform(*np.array([row], np.uint64).T)[0] == number
        assert 0 <= number < 1


def grid(seeds: int, samples: int, positions: int) -> np.ndarray:
    seed, sample, position = (a.ravel().astype(np.uint64) for a in np.mgrid[:seeds, :samples, :positions])
    return uniform(seed, sample, position).reshape(seeds, samples, positions)


def test_numbers_are_uniform() -> None:
    """Kolmogorov-Smirnov distance below its 1e-6 quantile, 1.95 × the usual 5% one."""
    numbers = np.sort(grid(50, 20, 100).ravel())
    expected = (np.arange(len(numbers)) + 0.5) / len(numbers)
    assert np.abs(numbers - expected).max() < 2.7 / np.sqrt(len(numbers))


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["seeds", "samples", "positions"])
def test_neighbouring_streams_are_uncorrelated(axis: int) -> None:
    numbers = np.moveaxis(grid(40, 40, 40), axis, 0)
    assert len(np.unique(numbers)) == numbers.size
    for lag in (1, 2, 7):
        first, second = numbers[:-lag].ravel(), numbers[lag:].ravel()
        correlation = np.corrcoef(first, second)[0, 1]
        assert abs(correlation) < 5 / np.sqrt(first.size)


def test_derived_seeds_differ_and_are_no_token_numbers() -> None:
    """Seeds of requests: 64 bits, distinct over engine seeds and requests, and not the words that tokens draw from."""
    seeds = {derived_seed(engine_seed, index) for engine_seed in (0, 1, -1, 2**63) for index in range(200)}
    assert len(seeds) == 800
    assert min(seeds) >= 0
    assert 2**63 < max(seeds) < 2**64
    zero = np.zeros(1, np.uint64)
    first_word = int(philox_4x32((zero, zero, zero, zero), (zero, zero))[0][0])
    assert derived_seed(0, 0) & 0xFFFFFFFF != first_word
