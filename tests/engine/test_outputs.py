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


def test_a_failed_sample_is_never_among_the_best() -> None:
    failed = CompletionOutput(0, "", [], cumulative_logprob=0.0, finish_reason="error")
    whole = CompletionOutput(1, "fine", [1, 2], cumulative_logprob=-9.0, finish_reason="length")
    assert select_best([failed, whole], 1)[0].text == "fine"
