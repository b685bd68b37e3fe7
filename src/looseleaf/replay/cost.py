"""How long a step takes: what turns decisions into virtual time."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class StepCost(Protocol):
    """A pure function of what a step computes. The same step always takes the same time."""

    def seconds(
        self, *, num_tokens: int, num_seqs: int, num_sampled: int, context_tokens: int, attention_pairs: int
    ) -> float:
        """One step.

        `num_tokens` query tokens of `num_seqs` sequences go through the model and `num_sampled` tokens are sampled.
        `context_tokens`: keys that are read, summed over the sequences, their own tokens included.
        `attention_pairs`: keys that each query looks at, summed over all queries.
        """
        ...

    def decode_seconds(self, *, num_seqs: int, context_tokens: int, num_steps: int) -> NDArray[np.float64]:
        """Steps in a row in which each of `num_seqs` sequences decodes one token, by step.

        `context_tokens` is that of the first step; each later one reads `num_seqs` more. Bitwise what `seconds` gives
        for each of them.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Name and parameters as plain values."""
        ...
