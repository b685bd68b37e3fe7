"""The most likely token of each row, on every instruction set, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.kernels import native
from looseleaf.kernels.sampling import most_likely

ODD = (np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(np.float32).min, np.finfo(np.float32).max)


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 5), st.sampled_from([1, 2, 15, 16, 17, 255, 256, 257, 272, 511, 1024, 1500])),
    odd=st.lists(st.sampled_from(ODD), max_size=4),
    kinds=st.sampled_from([2, 1000]),
)
@settings(max_examples=200, deadline=None)
@pytest.mark.parametrize("isa", [*native.available_isas(), None])
def test_it_is_the_first_of_equals_or_the_first_nan(isa, seed, shape, odd, kinds):
    generator = np.random.default_rng(seed)
    logits = generator.integers(-kinds, kinds, shape).astype(np.float32)  # many equals if there are few kinds
    for value in odd:
        logits[generator.integers(shape[0]), generator.integers(shape[1])] = value
    rows = generator.integers(0, shape[0], 7)
    expected = logits.argmax(-1)[rows]
    if isa is None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "is_chosen", lambda: False)
            found = most_likely(torch.from_numpy(logits), rows)
    else:
        with native.use_isa(isa):
            found = most_likely(torch.from_numpy(logits), rows)
    assert found.tolist() == expected.tolist()


@pytest.mark.skipif(not native.is_available(), reason="the native extension was not built")
def test_the_operator_checks_for_itself():
    argmax = torch.ops.looseleaf.argmax_rows
    logits, rows, best = torch.zeros(2, 5), torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    for arguments, message in (
        ((logits, rows + 2, best), "rows"),
        ((logits, rows - 1, best), "rows"),
        ((logits, rows, best[:2]), "as long"),
        ((logits.double(), rows, best), "dtype"),
        ((logits.t(), rows, best), "contiguous"),
        ((logits[0], rows, best), "dimensions"),
        ((logits[:, :0], rows, best), "column"),
        ((logits, rows.int(), best), "int64"),
    ):
        with pytest.raises(RuntimeError, match=message):
            argmax(*arguments)
