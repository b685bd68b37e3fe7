"""What is asked: the lengths that were wanted, the same tokens where prompts begin alike, and bad files by line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from looseleaf.errors import InvalidRequest
from looseleaf.load.arrivals import arrivals
from looseleaf.load.work import InvalidTrace, Lengths, LoadRequest, RandomTokens, random_work, trace_work, words


def write(path: Path, *lines: dict[str, Any]) -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def test_random_work_is_as_long_as_asked_for_and_repeatable() -> None:
    def make(seed: int) -> list[LoadRequest]:
        return random_work(50, Lengths(3, 9), Lengths(2, 2), seed, RandomTokens(seed, (10, 12)))

    work = make(1)
    assert {len(each.prompt) for each in work} == set(range(3, 10))
    assert {each.output_tokens for each in work} == {2}
    assert {token for each in work for token in each.prompt.tolist()} == {10, 11}
    assert all(np.array_equal(a.prompt, b.prompt) for a, b in zip(work, make(1), strict=True))
    assert any(not np.array_equal(a.prompt, b.prompt) for a, b in zip(work, make(2), strict=True))


@pytest.mark.parametrize("text", ["", "0", "-5", "9-3", "a", "3-", "1.5"])
def test_a_length_that_is_none(text: str) -> None:
    if text == "3-":
        assert Lengths.parse(text) == Lengths(3, 3)
        return
    with pytest.raises(InvalidRequest, match="no length"):
        Lengths.parse(text)


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_trace(name: str, tmp_path: Path) -> None:
    path = write(
        tmp_path / name,
        {"timestamp": 1500, "input_length": 700, "output_length": 5, "hash_ids": [7, 9]},
        {"timestamp": 1000, "input_length": 600, "output_length": 4, "hash_ids": [7, 8], "client": 3},
        {"timestamp": 2000, "input_length": 20, "output_length": 3, "hash_runs": [[4, 2]], "block_size": 16},
        {"timestamp": 2000, "input_length": 40, "output_length": 3, "hash_runs": [[4, 1], [5, 1]], "block_size": 16},
        {"timestamp": 2500, "input_length": 9, "output_length": 0},
        {"timestamp": 3000, "input_length": 9, "output_length": 1},
    )
    work = trace_work(path, RandomTokens(0))
    assert [(each.at, len(each.prompt), each.output_tokens) for each in work] == [
        (0.0, 600, 4),
        (0.5, 700, 5),
        (1.0, 20, 3),
        (1.0, 40, 3),
        (2.0, 9, 1),
    ]
    assert np.array_equal(work[0].prompt[:512], work[1].prompt[:512])
    assert not np.array_equal(work[0].prompt[512:], work[1].prompt[512:600])
    assert np.array_equal(work[2].prompt, work[3].prompt[:20])
    assert len(trace_work(path, RandomTokens(0), limit=2)) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"timestamp": 0, "input_length": 5}, r"Line 2 .*output_length"),
        ({"timestamp": 0, "input_length": -5, "output_length": 1}, r"Line 2 .*negative"),
        ({"timestamp": "x", "input_length": 5, "output_length": 1}, r"Line 2 .*timestamp"),
    ],
)
def test_a_line_that_is_wrong(line: dict[str, Any], message: str, tmp_path: Path) -> None:
    good = {"timestamp": 0, "input_length": 5, "output_length": 1}
    with pytest.raises(InvalidTrace, match=message):
        trace_work(write(tmp_path / "trace.jsonl", good, line), RandomTokens(0))


def test_a_trace_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidTrace, match="no requests"):
        trace_work(write(tmp_path / "empty.jsonl"), RandomTokens(0))
    with pytest.raises(InvalidTrace, match="No such file"):
        trace_work(tmp_path / "none.jsonl", RandomTokens(0))
    (tmp_path / "broken.gz").write_bytes(b"no gzip")
    with pytest.raises(InvalidTrace, match="cannot be read"):
        trace_work(tmp_path / "broken.gz", RandomTokens(0))


def work(count: int) -> list[LoadRequest]:
    return [LoadRequest(np.zeros(1, np.int64), 1, at=float(i)) for i in range(count)]


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (100.0, 0.1)])
def test_random_arrivals(burstiness: float, variation: float) -> None:
    times = arrivals(work(20_000), rate=50.0, burstiness=burstiness, speed_up=1.0, seed=3)
    gaps = np.diff([0.0, *times])
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.1)


def test_a_traces_own_times() -> None:
    assert arrivals(work(3), rate=None, burstiness=1.0, speed_up=4.0, seed=0) == [0.0, 0.25, 0.5]


def test_words() -> None:
    assert len(words(np.arange(500)).split()) == 500
