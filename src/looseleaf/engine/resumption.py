"""Going on where an earlier run of a request left off, after the process that ran it has gone.

What was emitted is known, and the next tokens follow from it and the seed alone: it is computed again, as after a
preemption. Known tokens have no logprobs: outputs have those of the new ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from looseleaf.engine.running_request import RunningRequest
from looseleaf.engine.sampling_params import SamplingParams, is_integer
from looseleaf.engine.stop import Finish
from looseleaf.errors import InvalidRequest


def check_known(
    known: Sequence[Sequence[int]], ended: Collection[int], params: SamplingParams, vocab_size: int
) -> tuple[int | None, ...]:
    """Known tokens of each sample, by their number; None: it has ended. () for a new request.

    Raises `InvalidRequest` for what no earlier run can have left. Beams, and samples to choose from (`best_of`), begin
    again instead: nothing of them is emitted before the end. So do prompts whose logprobs are wanted once more.
    """
    if not known and not ended:
        return ()
    if params.beam_width is not None or params.num_samples > params.n:
        raise InvalidRequest("A request whose outputs are chosen at the end cannot go on from known tokens.")
    if params.prompt_logprobs is not None:
        raise InvalidRequest("The logprobs of a prompt are known once there are tokens: leave prompt_logprobs out.")
    if len(known) != params.num_samples:
        raise InvalidRequest(f"There are {params.num_samples} samples, and known tokens of {len(known)}.")
    for tokens in known:
        if outside := [t for t in tokens if not is_integer(t) or not 0 <= t < vocab_size]:
            raise InvalidRequest(f"Token {outside[0]!r:.40} is not one of the vocabulary's {vocab_size}.")
    return tuple(None if sample in ended else len(tokens) for sample, tokens in enumerate(known))


def resume(running: RunningRequest, known: Sequence[Sequence[int]], ended: Collection[int]) -> None:
    """Bring the samples of a new request to where they were.

    Raises `InvalidRequest` if one of them had ended before, and is not said to have.
    """
    for index, (sample, tokens) in enumerate(zip(running.samples, known, strict=False)):
        for token_id in tokens:
            if sample.stop.finish is not None:
                raise InvalidRequest(f"Sample {index} has tokens beyond its end.")
            sample.resume(token_id)
        if index in ended:
            sample.end(Finish("abort"))  # if it is not known better
        elif sample.stop.finish is not None:
            raise InvalidRequest(f"Sample {index} has ended at its token {len(tokens)}.", hint="Name it in ended.")
