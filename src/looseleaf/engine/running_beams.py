"""Beams between the model and the outputs: from logits to the next beams, from hypotheses to samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from looseleaf.engine.beam_search import BeamSearch, continuations
from looseleaf.engine.logit_edits import LogitEdits
from looseleaf.engine.logprobs import TokenLogprobs, token_logprobs
from looseleaf.engine.running_request import RunningRequest
from looseleaf.engine.sampling_errors import SamplingFailed
from looseleaf.engine.stop import Finish


def advance(running: RunningRequest, search: BeamSearch, logits: Tensor, rows: NDArray[np.int64]) -> list[int]:
    """Take one step from the beams' rows of `logits` (float32 `[rows, vocab]`; after the prompt one row for all).

    Returns the beam that each of the next ones continues; nothing when the search is over, and the request's samples
    have ended.
    """
    params = running.params

    def describe(beams: NDArray[np.int64], token_ids: NDArray[np.int64]) -> list[TokenLogprobs]:
        return token_logprobs(logits, rows[beams], token_ids, np.full(len(beams), params.logprobs, np.int32))

    try:
        found = continuations(logits, rows, search.num_candidates, _edits(running, search), search.num_tokens)
    except SamplingFailed as failure:
        conclude(running, search, Finish("error", str(failure)))
        return []
    parents = search.advance(found, describe if params.logprobs is not None else None)
    if search.done:
        conclude(running, search, Finish("stop"))
        return []
    for sample, beam in zip(running.samples, search.beams, strict=True):
        sample.token_ids = list(beam.token_ids)
    return parents


def conclude(running: RunningRequest, search: BeamSearch, finish: Finish) -> bool:
    """Make the best hypotheses the outputs; `finish` is why beams on their way end. False if that was done before."""
    if running.finished:
        return False
    best = search.best(running.params.n)
    for sample, hypothesis in zip(running.samples, best, strict=False):
        sample.token_ids = list(hypothesis.token_ids)
        sample.cumulative_logprob = hypothesis.cumulative_logprob
        sample.score = search.score(hypothesis)
        sample.logprobs = [each.as_dict(running.decode_token) for each in hypothesis.logprobs]
        sample.text = [sample.stop.advance(token_id) for token_id in hypothesis.token_ids]
    for sample in running.samples[len(best) :]:
        sample.token_ids = []
    for sample in running.samples:
        sample.end(finish)
    return True


def _edits(running: RunningRequest, search: BeamSearch) -> list[LogitEdits]:
    params, ends = running.params, sorted(search.end_token_ids)
    if params.penalised:
        prompt = running.prompt.token_ids
        return [LogitEdits(params, ends, prompt, beam.token_ids) for beam in search.beams]
    if params.logit_bias or search.num_tokens < params.min_tokens:
        return [LogitEdits(params, ends, (), ())] * len(search.beams)
    return []
