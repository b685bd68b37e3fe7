"""Steps in a row that need no decision: all running sequences decode, and nobody comes or goes."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.interface import CopyPairs, SequenceIds
from looseleaf.scheduler.errors import InvalidCommit
from looseleaf.scheduler.interface import Sequence, SequenceState


class Outlook(NamedTuple):
    """What lies ahead if nothing is added or aborted."""

    num_seqs: int
    """Sequences, each of which decodes one token in every step."""
    context_tokens: int
    """Tokens that the first step attends to: the known ones of all sequences."""
    num_steps: int


@dataclass(frozen=True, slots=True, eq=False)
class DecodeRun:
    """`num_steps` steps at once; arrays have one entry per sequence unless said otherwise."""

    step: int
    """The last of them."""
    num_steps: int
    sequences: list[Sequence]
    seq_ids: SequenceIds
    num_tokens: NDArray[np.int32]
    """Known before the first step: all but the last of them are in the cache."""
    copies: CopyPairs
    """Block copies to carry out before anything is written."""
    blocks_taken: NDArray[np.int64]
    """By step: blocks that the sequences began, copies included."""


def check_run(run: DecodeRun, finished: AbstractSet[Sequence], due: list[Sequence]) -> None:
    """Raise `InvalidCommit` unless `finished` are among the sequences of `run`, or over, and include those `due`."""
    known = set(run.sequences) if finished else set()
    for sequence in finished:
        if sequence not in known and sequence.state is not SequenceState.FINISHED:
            raise InvalidCommit(
                f"The steps up to {run.step} sampled no token of {sequence}, which is reported as finished.",
                hint="End a request outside its step with abort().",
            )
    for sequence in due:
        if sequence not in finished:
            raise InvalidCommit(
                f"Step {run.step} sampled the last token that {sequence} may have, number "
                f"{sequence.request.final_len}, and it is not reported as finished."
            )
