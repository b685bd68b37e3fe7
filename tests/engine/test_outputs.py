from __future__ import annotations

import pytest

from looseleaf.engine.outputs import CompletionOutput, select_best


@pytest.mark.parametrize(
    ("logprobs", "n", "expected"),
    [([-3.0, -1.0, -2.0], 2, ["1", "2"]), ([-1.0, -1.0, -1.0], 2, ["0", "1"]), ([-1.0], 1, ["0"])],
)
def test_best_samples_come_first_and_are_numbered_anew(logprobs: list[float], n: int, expected: list[str]) -> None:
    samples = [CompletionOutput(i, str(i), [i], cumulative_logprob=logprob) for i, logprob in enumerate(logprobs)]
    best = select_best(samples, n)
    assert [output.text for output in best] == expected
    assert [output.index for output in best] == list(range(n))
    assert [sample.index for sample in samples] == list(range(len(logprobs)))
