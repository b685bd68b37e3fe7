"""Every public trace reads, and has the lengths that are known of it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from looseleaf.replay.trace import Trace, read_trace

TRACES = Path(os.environ.get("LOOSELEAF_SHARED", Path(__file__).parents[3] / "shared")) / "traces"
FILES = sorted(TRACES.glob("*.gz"))

pytestmark = pytest.mark.skipif(not FILES, reason="request traces not found (set LOOSELEAF_SHARED)")

KNOWN = {
    "azure2023_code_full": (8_819, (2048, 1469, 7303, 7437), (28, 13, 90, 1899)),
    "azure2023_conv_full": (19_366, (1155, 1020, 4083, 14050), (211, 129, 451, 1000)),
    "mooncake_conversation_full": (12_031, (12035, 6909, 39550, 126195), (343, 350, 698, 2000)),
    "mooncake_synthetic_full": (3_993, (15325, 11587, 48905, 191378), (149, 69, 519, 893)),
    "weka_40_sessions_le131k": (1_189, None, None),
    "weka_all_le65k": (1_086, None, None),
    "ragpulse_full": (7_106, (2944, 3140, 4425, 7712), (283, 234, 670, 2183)),
    "sharegpt300_llama-3.1-8b_bs16": (300, (858, 732, 1749, 3998), (653, 632, 773, 1021)),
    "lmsys_arena_vtc_full": (1_500, (136, 40, 653, 1021), (256, 211, 513, 977)),
    "miniswe_bs16": (402, None, None),
    "magagent_bs16": (693, None, None),
    "taubench_bs16": (471 - 283, None, None),
}
"""Requests, and mean, median, 95th percentile and maximum of prompts and outputs."""


def table(trace: Trace) -> pl.DataFrame:
    return pl.concat(trace.batches())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.split(".")[0])
def test_every_trace_reads(path: Path) -> None:
    trace = read_trace(path, bad_lines="skip")
    rows = table(trace)
    assert len(rows) == trace.num_requests
    assert rows["arrival"].is_sorted()
    assert rows["arrival"][0] >= 0
    assert rows.select(pl.col("prompt_tokens", "output_tokens").min() > 0).row(0) == (True, True)
    told = rows.filter(pl.col("run_lengths").is_not_null())
    assert (told["run_lengths"].list.sum() == told["prompt_tokens"]).all()
    assert told["run_firsts"].list.min().min() is None or told["run_firsts"].list.min().min() >= 0  # type: ignore[operator]


@pytest.mark.parametrize("name", KNOWN)
def test_known_figures(name: str) -> None:
    num_requests, *lengths = KNOWN[name]
    trace = read_trace(TRACES / f"{name}.jsonl.gz", bad_lines="skip")
    rows = table(trace)
    assert trace.num_requests == num_requests
    for column, known in zip(("prompt_tokens", "output_tokens"), lengths, strict=True):
        if known is not None:
            values = rows[column].to_numpy()
            ours = (values.mean(), np.median(values), np.percentile(values, 95), values.max())
            assert ours == pytest.approx(known, abs=0.6)


def test_rows_without_output_are_counted() -> None:
    trace = read_trace(TRACES / "taubench_bs16.jsonl.gz", bad_lines="skip")
    assert [(each.count, each.first_line) for each in trace.origin.skipped] == [(283, 2)]
