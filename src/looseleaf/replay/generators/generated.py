"""Traces that are drawn as they are read: any number of requests, in the memory of one batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from looseleaf.replay.generators.arrivals import Clock
from looseleaf.replay.generators.lengths import PUBLISHED
from looseleaf.replay.generators.spec import GeneratorSpec, parse_spec
from looseleaf.replay.trace import COLUMNS, Trace, TraceOrigin

BATCH = 32_768
CONVERSATIONS = 8_192
"""Drawn at once."""
LONGEST_PROMPT = 1 << 29

_Number = TypeVar("_Number", np.int64, np.float64)


class Draws:
    """A source of chance of its own for each property, so that one does not change with another."""

    def __init__(self, seed: int) -> None:
        names = ("arrivals", "prompt", "output", "system", "turns", "think", "tenants")
        streams = np.random.default_rng(seed).spawn(len(names))
        self.arrivals, self.prompt, self.output, self.system, self.turns, self.think, self.tenants = streams


class GeneratedTrace(Trace):
    """The requests of a description, the same at each reading."""

    def __init__(self, spec: GeneratorSpec, name: str = "generated") -> None:
        super().__init__(name=name, num_requests=spec.n, unit=None, origin=TraceOrigin("generated", (), _notes(name)))
        self.spec = spec

    @classmethod
    def parse(cls, text: str) -> GeneratedTrace:
        """Raises `InvalidSpec`."""
        return cls(parse_spec(text), text)

    def batches(self) -> Iterator[pl.DataFrame]:
        draws = Draws(self.spec.seed)
        clock = self.spec.arrivals.clock(draws.arrivals)
        return self._conversations(draws, clock) if self.spec.turns else self._single_requests(draws, clock)

    def _single_requests(self, draws: Draws, clock: Clock) -> Iterator[pl.DataFrame]:
        spec = self.spec
        first_own = spec.system_tokens * spec.system_prompts
        for start in range(0, spec.n, BATCH):
            # Whole batches are drawn, so that a longer trace begins as a shorter one does.
            own, output = spec.prompt.draw(draws.prompt, BATCH), spec.output.draw(draws.output, BATCH)
            runs = None
            if spec.system_tokens:
                system = draws.system.integers(0, spec.system_prompts, BATCH) * spec.system_tokens
                # Each begins with an id of its own, and so has nothing in common with another from there on.
                firsts = np.stack([system, first_own + np.arange(start, start + BATCH)], axis=1)
                runs = firsts, np.stack([np.full(BATCH, spec.system_tokens), own], axis=1)
            tenants = _tenants(spec, draws, BATCH)
            frame = self._frame(clock(BATCH), own + spec.system_tokens, output, runs, tenants)
            yield frame.head(spec.n - start)

    def _frame(
        self,
        arrival: NDArray[np.float64],
        prompt: NDArray[np.int64],
        output: NDArray[np.int64],
        runs: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
        tenants: NDArray[np.int64],
        session: NDArray[np.int64] | None = None,
    ) -> pl.DataFrame:
        """`runs`: first ids and lengths `[requests, 2]`; those of length 0 are left out."""
        names = [name for name, _ in self.spec.tenants] or [""]
        lists: list[pl.Series | pl.Expr] = [pl.lit(None).alias("run_firsts"), pl.lit(None).alias("run_lengths")]
        if runs is not None:
            kind = pl.Array(pl.Int64(), runs[0].shape[1])
            lists = [
                pl.Series(name, values, dtype=kind).arr.to_list()
                for name, values in zip(("run_firsts", "run_lengths"), runs, strict=True)
            ]
        sessions = pl.lit("") if session is None else pl.Series(session).cast(pl.String)
        frame = pl.DataFrame({"arrival": arrival, "prompt_tokens": prompt, "output_tokens": output}).with_columns(
            *lists,
            pl.Series("tenant", names).gather(tenants),
            pl.lit(0).alias("priority"),
            sessions.alias("session"),
            pl.lit(self.spec.num_samples).alias("num_samples"),
        )
        return frame.select(pl.col(name).cast(kind) for name, kind in COLUMNS.items())

    def _conversations(self, draws: Draws, clock: Clock) -> Iterator[pl.DataFrame]:
        """The turns of all conversations, in order of arrival: those that come after the last conversation drawn so
        far began wait for the next ones."""
        waiting = np.empty(0, _TURN)
        for turns, start in _conversations(self.spec, draws, clock):
            waiting = np.concatenate([waiting, turns])
            waiting = waiting[np.argsort(waiting["arrival"], kind="stable")]
            ready = int(np.searchsorted(waiting["arrival"], start))
            for begin in range(0, ready, BATCH):
                yield self._turns(waiting[begin : min(begin + BATCH, ready)])
            waiting = waiting[ready:]

    def _turns(self, turns: NDArray[np.void]) -> pl.DataFrame:
        # Ids count up from a conversation's first one, which is its own: one run is a prompt of any turn.
        system_tokens, own = self.spec.system_tokens, turns["prompt"]
        firsts = [system_tokens * self.spec.system_prompts + turns["conversation"]]
        lengths = [own]
        if system_tokens:
            firsts.insert(0, turns["system"] * system_tokens)
            lengths.insert(0, np.full(len(turns), system_tokens))
        runs = np.stack(firsts, axis=1), np.stack(lengths, axis=1)
        return self._frame(
            turns["arrival"], own + system_tokens, turns["output"], runs, turns["tenant"], turns["conversation"]
        )


_COUNTS = ("prompt", "output", "conversation", "system", "tenant")
_TURN = np.dtype([("arrival", np.float64), *((name, np.int64) for name in _COUNTS)])
"""`prompt` is without the system prompt."""


def _conversations(spec: GeneratorSpec, draws: Draws, clock: Clock) -> Iterator[tuple[NDArray[np.void], float]]:
    """The turns of some conversations, and until when none of later ones comes; all of them are `spec.n`."""
    assert spec.turns is not None
    left, first = spec.n, 0
    while left:
        starts = clock(CONVERSATIONS)
        counts = spec.turns.draw(draws.turns, CONVERSATIONS)
        of = np.repeat(np.arange(CONVERSATIONS), counts)  # each turn's conversation
        new, said = spec.prompt.draw(draws.prompt, len(of)), spec.output.draw(draws.output, len(of))
        gaps = draws.think.exponential(spec.think, len(of)) if spec.think else np.zeros(len(of))
        begins = (np.cumsum(counts) - counts)[of]  # where each turn's conversation begins
        turns = np.empty(len(of), _TURN)
        turns["arrival"] = starts[of] + _sum_since(gaps, begins) - gaps[begins]
        turns["prompt"] = np.minimum(_sum_since(new + said, begins) - said, LONGEST_PROMPT)
        turns["output"] = said
        turns["conversation"] = first + of
        turns["system"] = draws.system.integers(0, spec.system_prompts, CONVERSATIONS)[of]
        turns["tenant"] = _tenants(spec, draws, CONVERSATIONS)[of]
        is_last = len(turns) >= left
        yield turns[:left], np.inf if is_last else float(starts[-1])
        left -= min(left, len(turns))
        first += CONVERSATIONS


def _sum_since(values: NDArray[_Number], begins: NDArray[np.int64]) -> NDArray[_Number]:
    """The sum of each one's values from its beginning on, itself included."""
    sums = np.cumsum(values)
    return sums - sums[begins] + values[begins]


def _tenants(spec: GeneratorSpec, draws: Draws, size: int) -> NDArray[np.int64]:
    """Which tenant each belongs to."""
    if len(spec.tenants) < 2:
        return np.zeros(size, np.int64)
    weights = np.array([weight for _, weight in spec.tenants])
    return draws.tenants.choice(len(weights), size, p=weights / weights.sum())


def _notes(text: str) -> tuple[str, ...]:
    return tuple(
        f"The mean lengths are those of {name} in the PagedAttention paper; log-normal is our choice."
        for name in PUBLISHED
        if f"={name}" in text
    )
