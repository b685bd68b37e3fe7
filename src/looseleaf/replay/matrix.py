"""Many replays of one trace: on all cores, each kept as soon as it is done, those done before not made again."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

from looseleaf.errors import ConfigurationError, RequestTooLarge
from looseleaf.replay.cost import StepCost
from looseleaf.replay.outcome import Outcome
from looseleaf.replay.settings import Settings
from looseleaf.replay.simulator import replay
from looseleaf.replay.sources import TraceSource
from looseleaf.replay.store import ResultStore

POLL_SECONDS = 0.2

Progress = Callable[[Sequence[float]], None]
"""Told, now and then, how far each cell has come: 0 to 1."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One replay of a matrix. Without an outcome it was refused, and `refusal` says why."""

    settings: Settings
    outcome: Outcome | None = None
    refusal: str = ""
    kept: bool = False
    """It was found among results of an earlier run."""


def run_matrix(
    source: TraceSource,
    settings: Sequence[Settings],
    cost: StepCost,
    store: ResultStore,
    *,
    keep_requests: bool = True,
    fresh: bool = False,
    processes: int | None = None,
    progress: Progress | None = None,
) -> list[Cell]:
    """Replay `source` under each of `settings`.

    What is finished is in `store` at once, and stays there when this is interrupted or fails; what is there already is
    not replayed again, unless `fresh`. A cell whose settings make no sense is refused without stopping the others.
    `keep_requests`: one row for each; without it memory stays flat however many there are, and goodput is not known.
    """
    identity = source.identity()
    keys = [store.key(identity, each, cost, keep_requests=keep_requests) for each in settings]
    jobs = [_Job(source, each, cost, store, key, keep_requests) for each, key in zip(settings, keys, strict=True)]
    cells = [
        Cell(each, None if fresh else store.load(key), kept=True) for each, key in zip(settings, keys, strict=True)
    ]
    todo = [place for place, cell in enumerate(cells) if cell.outcome is None]
    done = [float(cell.outcome is not None) for cell in cells]

    def report(place: int, share: float) -> None:
        done[place] = share
        if progress is not None:
            progress(done)

    def finish(place: int, refusal: str) -> None:
        # Also here the outcome is read from the store: what is kept is what is shown.
        cells[place] = Cell(settings[place], None if refusal else store.load(keys[place]), refusal)
        report(place, 1.0)

    processes = min(processes or usable_cores(), len(todo))
    if processes <= 1:
        for place in todo:
            finish(place, _run(jobs[place], partial(report, place)))
        return cells
    with _workers(processes, len(cells)) as (pool, shares):
        running = {pool.submit(_run_in_worker, jobs[place], place): place for place in todo}
        while running:
            finished, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in finished:
                finish(running.pop(future), future.result())
            for place in running.values():
                report(place, shares[place])
    return cells


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class _Job:
    source: TraceSource
    settings: Settings
    cost: StepCost
    store: ResultStore
    key: str
    keep_requests: bool


def _run(job: _Job, advance: Callable[[float], None]) -> str:
    """Replay and keep the result; returns why it was refused, or nothing."""
    trace = job.source.open()
    total = trace.num_requests

    def progress(finished: int, _now: float) -> None:
        if total:
            advance(min(finished / total, 1.0))

    try:
        config = job.settings.config()
        result = replay(trace, config, job.cost, progress=progress, keep_requests=job.keep_requests)
    except (ConfigurationError, RequestTooLarge) as error:
        return str(error)
    job.store.save(job.key, result)
    return ""


# What a worker process is given once, when it starts.
_shares: Any = None


@contextmanager
def _workers(processes: int, num_cells: int) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    """Fresh processes (a fork would copy threads), one thread each, that leave Ctrl-C to this one."""
    context = get_context("spawn")
    shares = context.Array("d", num_cells, lock=False)
    with _environment("POLARS_MAX_THREADS", "1"):
        pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker, initargs=(shares,))
        try:
            yield pool, shares
        except BaseException:
            # The cells in progress are given up: waiting for them could take minutes.
            running = list(pool._processes.values())
            pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.terminate()
            raise
        pool.shutdown()


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _start_worker(shares: Any) -> None:
    global _shares
    _shares = shares
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_in_worker(job: _Job, place: int) -> str:
    def advance(share: float) -> None:
        _shares[place] = share

    return _run(job, advance)
