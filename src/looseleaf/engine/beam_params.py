"""Which sampling parameters go together with beams."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from looseleaf.engine.sampling_errors import InvalidParameter

if TYPE_CHECKING:
    from looseleaf.engine.sampling_params import SamplingParams

MAX_LENGTH_PENALTY = 10.0
"""Beyond it the score says nothing but which output is longer."""


def check_beam_params(params: SamplingParams) -> None:
    """Raise `InvalidParameter` for what has no meaning with `beam_width`, or none without."""
    if params.beam_width is None:
        for name, default in (("length_penalty", 1.0), ("early_stopping", False)):
            if getattr(params, name) != default:
                raise InvalidParameter(name, getattr(params, name), f"{default} without beam_width")
        return
    if params.n > params.beam_width:
        raise InvalidParameter("n", params.n, f"at most beam_width, which is {params.beam_width}")
    drawn = "with beam_width: beams are the most likely outputs, nothing is drawn"
    if params.temperature != 1 and not params.greedy:
        raise InvalidParameter("temperature", params.temperature, f"0 or 1 {drawn}")
    for name, off in (("top_k", (0, -1)), ("top_p", (1.0,)), ("min_p", (0.0,)), ("best_of", (None,))):
        if getattr(params, name) not in off:
            raise InvalidParameter(name, getattr(params, name), f"{off[0]} {drawn}")
    if params.structured is not None:
        raise InvalidParameter("structured", params.structured, "None with beam_width")
    if params.stop:
        raise InvalidParameter(
            "stop", params.stop, "empty with beam_width", hint="Beams end at token ids: see stop_token_ids."
        )


def check_candidates(params: SamplingParams, end_token_ids: Collection[int], vocab_size: int) -> None:
    """Raise `InvalidParameter` for more beams than a vocabulary of `vocab_size` can tell apart."""
    if params.beam_width is None:
        return
    ends = len(end_token_ids)
    most = (vocab_size - ends) // max(2, 1 + ends)
    if params.beam_width > most:
        raise InvalidParameter(
            "beam_width",
            params.beam_width,
            f"at most {most} for a vocabulary of {vocab_size} tokens, {ends} of them ends",
        )
