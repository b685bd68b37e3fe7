"""Order statistics of one row against Python's sort, with many equal values."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.engine.row_order import at_least_kth_largest, descending, kth_largest, largest

# A small set of values, so that most rows have equals; -inf as the filters leave it.
rows = st.lists(st.sampled_from([0.0, 1e-30, 0.25, 0.5, 1.0, 3.5]), min_size=1, max_size=60)


@given(rows, st.data())
def test_kth_largest_and_largest(values: list[float], data: st.DataObject) -> None:
    values = [-np.inf if value == 0 else value - 1 for value in values]
    k = data.draw(st.integers(1, len(values)))
    row = np.array(values, np.float32)
    by_value = sorted(range(len(values)), key=lambda i: (-row[i], i))
    assert kth_largest(row, k) == sorted(row)[-k]
    assert largest(row, k).tolist() == by_value[:k]
    assert largest(row, 0).size == 0


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 1_200), st.integers(0, 1_000), st.booleans(), st.data())
def test_selection_from_long_rows(size: int, seed: int, coarse: bool, data: st.DataObject) -> None:
    """Lengths around the internal block size and several times it."""
    k = data.draw(st.integers(1, size) | st.integers(1, min(size, 6)))
    row = np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)
    row = np.round(row) if coarse else row
    kth = sorted(row.tolist(), reverse=True)[k - 1]
    assert at_least_kth_largest(row, k).tolist() == [i for i, value in enumerate(row.tolist()) if value >= kth]
    assert largest(row, k).tolist() == sorted(range(size), key=lambda i: (-row[i], i))[:k]


@given(rows)
def test_descending_puts_equal_values_in_order_of_index(values: list[float]) -> None:
    row = np.array(values, np.float32)
    assert descending(row).tolist() == sorted(range(len(values)), key=lambda i: (-row[i], i))
