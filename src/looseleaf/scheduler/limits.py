"""What can never run, and is refused before it waits."""

from __future__ import annotations

import math

from looseleaf.errors import ConfigurationError, InvalidRequest, RequestTooLarge
from looseleaf.memory.interface import KVMemory
from looseleaf.scheduler.interface import Request, SchedulerConfig, SequenceState


def largest_beams(config: SchedulerConfig, memory: KVMemory, num_beams: int, prompt_len: int) -> int:
    """Most tokens (prompt and output) of each of `num_beams` beams that have only the prompt in common."""
    fits, too_large = 0, config.max_model_len
    while fits + 1 < too_large:
        middle = (fits + too_large) // 2
        if memory.can_ever_fit(middle, num_sequences=num_beams, shared_tokens=min(prompt_len, middle)):
            fits = middle
        else:
            too_large = middle
    return fits + 1  # the last token sampled never enters the cache


def largest_request(config: SchedulerConfig, memory: KVMemory) -> int:
    """Most tokens (prompt and output of one sample) that run to their end alone in the empty pool.

    Raises `ConfigurationError` when not even one prompt token and one output token would.
    """
    largest = largest_beams(config, memory, num_beams=1, prompt_len=0)
    if largest == 1:
        raise ConfigurationError(
            f"Not one request fits: the longest sequence is {config.max_model_len} tokens and the pool has "
            f"{memory.num_blocks} blocks of {memory.block_size} tokens.",
            hint="A request is at least two tokens long: give the pool more memory or raise max_model_len.",
        )
    return largest


def check_request(request: Request, config: SchedulerConfig, limit: int) -> None:
    """Raise `InvalidRequest`, or `RequestTooLarge` for what exceeds `limit` tokens or the seats."""
    for name, value in (
        ("prompt_len", request.prompt_len),
        ("max_tokens", request.max_tokens),
        ("num_samples", request.num_samples),
    ):
        if value < 1:
            raise InvalidRequest(f"Request {request.request_id!r}: {name} is {value} but must be at least 1.")
    if not 0 < request.weight < math.inf:
        raise InvalidRequest(
            f"Request {request.request_id!r}: weight is {request.weight} but must be a number above 0."
        )
    if request.known:
        _check_known(request)
    elif any(sequence.state is SequenceState.FINISHED for sequence in request.sequences):
        raise InvalidRequest(
            f"Request {request.request_id!r} has run before.", hint="Make a new Request for every submission."
        )
    if request.num_samples > config.max_num_seqs:
        raise RequestTooLarge(
            f"Request {request.request_id!r} asks for {request.num_samples} samples, and at most "
            f"{config.max_num_seqs} sequences run at once.",
            needed=request.num_samples,
            limit=config.max_num_seqs,
            hint="Ask for fewer samples, or raise max_num_seqs.",
        )
    if request.beams and request.num_samples > config.max_num_batched_tokens:
        raise RequestTooLarge(
            f"Request {request.request_id!r} asks for {request.num_samples} beams, which advance together, and a step "
            f"has {config.max_num_batched_tokens} tokens.",
            needed=request.num_samples,
            limit=config.max_num_batched_tokens,
            hint="Ask for fewer beams, or raise max_num_batched_tokens.",
        )
    if request.final_len > limit:
        bound_by_model = limit == config.max_model_len
        bound = "the maximum length" if bound_by_model else "the most that the empty KV pool can hold"
        if request.beams and not bound_by_model:
            bound += f" of {request.num_samples} such beams"
        raise RequestTooLarge(
            f"Request {request.request_id!r} needs {request.final_len} tokens ({request.prompt_len} of prompt and up "
            f"to {request.max_tokens} of output), and {bound} is {limit}.",
            needed=request.final_len,
            limit=limit,
            hint="Shorten the prompt or max_tokens, or "
            + ("raise max_model_len." if bound_by_model else "give the KV cache more memory."),
        )


def _check_known(request: Request) -> None:
    """Raise `InvalidRequest` unless the request can go on from what its samples know."""
    living = [count for count in request.known if count is not None]
    if request.beams:
        what = "its beams cannot go on from known tokens"
    elif len(request.known) != request.num_samples:
        what = f"the known tokens of {len(request.known)} samples are given, and it has {request.num_samples}"
    elif not living:
        what = "all its samples have ended"
    elif not 0 <= min(living) <= max(living) < request.max_tokens:
        what = f"a sample has {max(living)} tokens and may have {request.max_tokens}"
    else:
        return
    raise InvalidRequest(f"Request {request.request_id!r}: {what}.")
