from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from looseleaf.engine.sampler import SamplerOutput, sample
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.engine.sampling_rows import SamplingRows

EOS = 2


def sample_rows(
    logits: torch.Tensor,
    params: Sequence[SamplingParams],
    *,
    seeds: Sequence[int] | None = None,
    logits_index: Sequence[int] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    outputs: Sequence[Sequence[int]] | None = None,
    numbers: np.ndarray | None = None,
) -> SamplerOutput:
    """One step over new rows; `numbers` replaces the random numbers."""
    rows = SamplingRows(len(params), [EOS])
    for row, row_params in enumerate(params):
        rows.add(
            row,
            row_params,
            seed=seeds[row] if seeds else 0,
            prompt=prompts[row] if prompts else (),
            output=outputs[row] if outputs else (),
        )
    index = None if logits_index is None else np.array(logits_index, np.int64)
    batch = rows.select(np.arange(len(params)), index)
    return sample(logits, batch if numbers is None else replace(batch, uniform=numbers))


@pytest.fixture(scope="session")
def step() -> Callable[..., SamplerOutput]:
    return sample_rows
