"""Who sits where while it runs: seats are taken on admission, follow the tokens, and are given back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from looseleaf.engine.running_request import RunningRequest, RunningSample
from looseleaf.engine.sampling_rows import SamplingRows
from looseleaf.engine.seats import Seats
from looseleaf.scheduler.interface import Request, Sequence, SequenceState


class Seating:
    """Keeps the rows of `Seats` and `SamplingRows` in step with the sequences."""

    def __init__(self, seats: Seats, sampling: SamplingRows, samples: Mapping[Sequence, RunningSample]) -> None:
        """`samples`: the engine's, by sequence; it grows and shrinks."""
        self._seats = seats
        self._sampling = sampling
        self._samples = samples

    def take(self, sequence: Sequence) -> None:
        """Seat an admitted sequence, and the samples that will fork from it."""
        for each in (sequence, *sequence.request.pending_forks):
            entry = self._samples[each]
            running = entry.request
            entry.seat = self._seats.take(entry.known_tokens, running.adapter)
            if running.search is not None:
                continue
            self._sampling.add(
                entry.seat,
                running.params,
                seed=running.seed,
                sample=each.sample,
                prompt=running.prompt.token_ids,
                output=entry.token_ids,
                grammar=entry.stop.grammar,
            )
        self._seats.bind(self._samples[sequence].seat, sequence.seq_id)

    def leave(self, sequence: Sequence) -> None:
        """Give back the seat of a sequence, and of the samples that would have forked from it, if they have one."""
        for each in (sequence, *sequence.request.pending_forks):
            entry = self._samples[each]
            if entry.seat >= 0:
                self._sampling.remove(entry.seat)
                self._seats.give_back(entry.seat)
                entry.seat = -1

    def settle(self, entries: list[RunningSample], token_ids: NDArray[np.int64]) -> list[RunningSample]:
        """After the commit: write down the new tokens, seat the forks, clear the seats of those that left. Returns
        those that stay."""
        staying = np.array([entry.sequence.state is SequenceState.RUNNING for entry in entries], np.bool_)
        for entry in (entry for entry, stays in zip(entries, staying.tolist(), strict=True) if not stays):
            self.leave(entry.sequence)  # it has ended, or found no memory to fork into
        kept = [entry for entry, stays in zip(entries, staying.tolist(), strict=True) if stays]
        if not kept:
            return []
        for entry in kept:
            if len(entry.token_ids) == 1:
                self._seats.bind(entry.seat, entry.sequence.seq_id)
        seats = np.array([entry.seat for entry in kept], np.int64)
        positions = np.array([entry.sequence.num_tokens - 1 for entry in kept], np.int64)
        self._seats.tokens[seats, positions] = token_ids[staying]
        self._sampling.append(seats, token_ids[staying])
        return kept

    def settle_beams(self, running: RunningRequest, parents: list[int]) -> None:
        """After the commit: each beam's seat has the tokens of the one that it continues, and its own new one."""
        if not parents:
            for sample in running.samples:
                self.leave(sample.sequence)
            return
        self.bind_beams(running.request)
        seats = np.array([sample.seat for sample in running.samples], np.int64)
        position = running.request.sequences[0].num_tokens - 1
        self._seats.tokens[seats, :position] = self._seats.tokens[seats[parents], :position]
        self._seats.tokens[seats, position] = [sample.token_ids[-1] for sample in running.samples]

    def bind_beams(self, request: Request) -> None:
        """Beams have come by other blocks: their rows are those of their seats."""
        for sequence in request.sequences:
            if sequence.seq_id >= 0:
                self._seats.bind(self._samples[sequence].seat, sequence.seq_id)
