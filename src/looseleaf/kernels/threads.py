"""How many threads compute."""

from __future__ import annotations

import logging
import os
from functools import cache

from looseleaf.errors import ConfigurationError
from looseleaf.kernels.processors import Cores, read_cores

logger = logging.getLogger("looseleaf")


def check_threads(threads: int, cores: Cores | None = None) -> None:
    """Raise `ConfigurationError` for more threads than can run at once, or fewer than one."""
    cores = cores or read_cores()
    if threads < 1:
        raise ConfigurationError(f"{threads} threads were asked for but there must be at least 1.")
    if threads > cores.most:
        quota = "" if cores.quota is None else f" and a quota of {cores.quota:g} processors"
        raise ConfigurationError(
            f"{threads} threads were asked for, but this process may use {cores.logical} of the machine's "
            f"{cores.machine} processors{quota}. Threads that wait for one another must all run at once.",
            hint=f"Use at most {cores.most}; {cores.best} is best here.",
        )


def use_threads(threads: int | None) -> None:
    """Compute with so many of torch's threads. None: what OMP_NUM_THREADS says, or else one per core that may be used.

    Raises `ConfigurationError`.
    """
    import torch

    if threads is not None:
        check_threads(threads)
        torch.set_num_threads(threads)
    elif not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(read_cores().best)


@cache
def warn_if_oversubscribed() -> None:
    """Say once in the log that torch has more threads than can run at once: each step then waits for a time slice."""
    import torch

    cores, threads = read_cores(), torch.get_num_threads()
    if threads > cores.most:
        logger.warning(
            "torch computes with %d threads but only %d can run at once here: this is very slow. "
            "Use --threads %d, OMP_NUM_THREADS=%d or torch.set_num_threads(%d).",
            *(threads, cores.most, cores.best, cores.best, cores.best),
        )
