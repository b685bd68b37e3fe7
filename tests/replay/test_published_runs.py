"""Replays beside what was measured or published of real engines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from looseleaf.plan.arithmetic import ModelArithmetic
from looseleaf.plan.hardware import find_hardware
from looseleaf.plan.known_models import find_model
from looseleaf.replay.config import ReplayConfig
from looseleaf.replay.roofline import Roofline
from looseleaf.replay.simulator import replay
from looseleaf.replay.trace import TraceRequest
from looseleaf.scheduler import SchedulerConfig

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("LOOSELEAF_SHARED", ROOT.parent / "shared"))


@pytest.fixture
def replay_measured(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import replay_measured

    return replay_measured


@pytest.mark.skipif(not (SHARED / "measured").is_dir(), reason="measured runs not found (set LOOSELEAF_SHARED)")
def test_a_measured_run_is_predicted_from_hardware_figures_alone(replay_measured: ModuleType) -> None:
    real = replay_measured.measured(SHARED)
    simulated = replay_measured.as_run(replay_measured.replayed(SHARED, replay_measured.MEASURED_BLOCKS))
    for name in ("ttft", "tpot", "makespan"):
        assert getattr(simulated, name) == pytest.approx(getattr(real, name), rel=0.05), name
    assert replay_measured.curve_difference(real.running, simulated.running) < 0.15
    assert replay_measured.curve_difference(real.waiting, simulated.waiting) < 0.10
    larger = replay_measured.as_run(replay_measured.replayed(SHARED, replay_measured.LARGER_POOL))
    assert larger.ttft / simulated.ttft - 1 == pytest.approx(-0.21, abs=0.02)
    assert larger.tpot / simulated.tpot - 1 == pytest.approx(0.12, abs=0.02)


class LongOutputs:
    """450 requests at once, prompts of 1,000 and outputs of 5,000 tokens, both give or take 20 %."""

    name = "long outputs"

    def requests(self) -> Iterator[TraceRequest]:
        rng = np.random.default_rng(1)
        for _ in range(450):
            yield TraceRequest(0.0, int(rng.integers(800, 1201)), int(rng.integers(4000, 6001)), None)


@pytest.mark.parametrize(("watermark", "published"), [(0.0, 1065), (0.05, 187), (0.15, 168)])
def test_preemptions_by_watermark_are_those_published(watermark: float, published: int) -> None:
    """One draw; `benchmarks/replay_preemptions.py` prints the mean of ten. It is served in order, without chunks."""
    scheduler = SchedulerConfig(8192, 128, 8192, watermark=watermark, max_bypass=0)
    cost = Roofline(ModelArithmetic(find_model("llama-3.1-8b")), find_hardware("a100-80gb"))
    result = replay(LongOutputs(), ReplayConfig(18_724, 16, prefix_caching=False, scheduler=scheduler), cost)
    assert result.totals.preemptions == pytest.approx(published, rel=0.15)
