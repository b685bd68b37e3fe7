"""When requests are due: seconds after the start of a load test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from looseleaf.load.work import LoadRequest


def arrivals(
    work: Sequence[LoadRequest], *, rate: float | None, burstiness: float, speed_up: float, seed: int
) -> list[float]:
    """One per request, not falling.

    With a `rate` (requests per second): gaps of a gamma distribution, of shape `burstiness`: 1 is a Poisson process,
    less is burstier. Without: the work's own times, divided by `speed_up`; all at once if it has none.
    """
    if rate is not None:
        gaps = np.random.default_rng([seed, 2]).gamma(burstiness, 1 / (rate * burstiness), size=len(work))
        times: list[float] = np.cumsum(gaps).tolist()
        return times
    return [(each.at or 0.0) / speed_up for each in work]
