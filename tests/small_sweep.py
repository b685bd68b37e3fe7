"""A trace of a few requests, a cost of round numbers, and a pool that is short: what tests of sweeps share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from looseleaf.replay.settings import Settings
from looseleaf.replay.sources import TraceSource

SOURCE = TraceSource("n=40,arrivals=poisson:40,prompt=uniform:20-60,output=uniform:10-40,seed=5")
SHARING = TraceSource("n=40,arrivals=poisson:40,prompt=uniform:20-60,output=uniform:10-40,system=64,seed=5")
SHORT = Settings(pool_tokens=512, max_model_len=256, max_num_seqs=16, max_num_batched_tokens=128)
AMPLE = Settings(pool_tokens=16384, max_model_len=256, max_num_seqs=64, max_num_batched_tokens=512)


class PlainCost:
    """A hundredth of a second for each step, and one more for every hundred tokens."""

    def __init__(self, step: float = 0.01) -> None:
        self.step = step

    def seconds(
        self,
        *,
        num_tokens: int,
        num_seqs: int,  # noqa: ARG002
        num_sampled: int,  # noqa: ARG002
        context_tokens: int,  # noqa: ARG002
        attention_pairs: int,  # noqa: ARG002
    ) -> float:
        return self.step + 1e-4 * num_tokens

    def decode_seconds(self, *, num_seqs: int, context_tokens: int, num_steps: int) -> NDArray[np.float64]:  # noqa: ARG002
        return np.full(num_steps, self.step + 1e-4 * num_seqs)

    def describe(self) -> dict[str, Any]:
        return {"kind": "plain", "step": self.step}
