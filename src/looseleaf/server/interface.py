"""What the HTTP front and the engine's process say to each other, and what the front's handlers are written against.

Messages are msgpack, one tagged union for each direction. Nothing here imports torch: the front never does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from looseleaf.errors import InvalidRequest, LooseleafError

FinishReason = Literal["stop", "length", "abort", "error"]
ClientState = Literal["starting", "ready", "restarting", "stopped"]


# From the front to the engine.


class GenerateRequest(msgspec.Struct, tag="generate", kw_only=True, omit_defaults=True):
    """One request. What is wrong with it comes back as `RequestRefused`, which `EngineClient.generate` raises."""

    request_id: str
    """Of no other request in flight."""
    prompt_token_ids: list[int]
    params: dict[str, Any] = {}
    """Keywords of `SamplingParams`. Stop strings are the front's, and the text too (`detokenize` false), except with
    beams and with `best_of` above `n`: there the engine chooses among whole outputs and must see where each ends. A
    `seed` must be there if anything is drawn and a restart is not to change it: `EngineClient` chooses one if not."""
    adapter: str | None = None
    cache_salt: str = ""
    tenant: str = ""
    weight: float = 1.0
    priority: int = 0
    known: list[list[int]] = []
    """After a restart: output tokens by sample that were emitted before; it goes on with the next ones."""
    ended: list[int] = []
    """After a restart: samples that get no more tokens."""


class AbortRequest(msgspec.Struct, tag="abort"):
    request_id: str


class EndSample(msgspec.Struct, tag="end_sample"):
    """The front has found a stop string: this sample needs no more tokens, the request's others go on."""

    request_id: str
    index: int


class Stop(msgspec.Struct, tag="stop"):
    """End the process; what is in flight is dropped."""


Command: TypeAlias = GenerateRequest | AbortRequest | EndSample | Stop


# From the engine to the front.


class TokenLogprob(msgspec.Struct, array_like=True, frozen=True):
    token_id: int
    logprob: float
    rank: int | None = None
    """1 is the most likely token of the vocabulary."""


PositionLogprobs: TypeAlias = list[TokenLogprob]
"""One position: the token that is there, then the most likely ones that are not it, most likely first."""


class RequestStarted(msgspec.Struct, tag="started", array_like=True):
    """Once per request, before its first update: the prompt is computed."""

    request_id: str
    num_cached_tokens: int
    """Prompt tokens whose keys and values were in the prefix cache."""
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    """By prompt position; the first is None."""
    queue_seconds: float = 0.0
    """From arrival in the engine to the first step that it was part of."""
    prefill_seconds: float = 0.0
    """From then to its first token."""


class SampleUpdate(msgspec.Struct, tag="update", array_like=True):
    """New tokens of one sample. With beams, and `best_of` above `n`, one per output, with all tokens, at the end."""

    request_id: str
    index: int
    token_ids: list[int]
    """The token that ended it is among them."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token (or string) that ended it; with reason "error" what went wrong."""
    logprobs: list[PositionLogprobs] | None = None
    """One per token, if asked for."""


class RequestEnd(msgspec.Struct, tag="end", array_like=True):
    """All samples have ended: the last event of a request."""

    request_id: str
    num_preemptions: int = 0


class RequestRefused(msgspec.Struct, tag="refused", array_like=True):
    """The engine does not take this request; `EngineClient.generate` raises it as `RequestRefusedError`."""

    request_id: str
    error: str
    """The class name: InvalidParameter, RequestTooLarge, UnknownAdapter, InvalidPrompt, …"""
    message: str
    hint: str = ""
    details: dict[str, Any] = {}
    """The error's attributes that are numbers or text: needed, limit, name, allowed, …"""


class ModelInfo(msgspec.Struct, kw_only=True):
    """What the front must know of the engine."""

    vocab_size: int
    eos_token_ids: list[int]
    """Those of the tokenizer and of the weights."""
    max_model_len: int
    largest_request: int
    """Most tokens, prompt and output together, that fit (without beams)."""
    block_size: int
    num_blocks: int
    max_num_seqs: int
    adapters: list[str] = []
    prefix_caching: bool = True
    model_path: str = ""
    """Where the weights lie; the front's tokenizer is loaded from there."""
    dtype: str = ""
    kv_cache_dtype: str = ""
    kv_cache_bytes: int = 0


class Ready(msgspec.Struct, tag="ready", array_like=True):
    info: ModelInfo


class StartFailed(msgspec.Struct, tag="failed", array_like=True):
    """The engine cannot start: a model that is missing, settings that make no sense, too little memory, …"""

    error: str
    message: str
    hint: str = ""


class EngineStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A snapshot. Counts are totals since the engine's process started, if not said otherwise."""

    step: int = 0
    """Steps run."""
    num_running: int = 0
    """Sequences that hold blocks now."""
    num_waiting: int = 0
    """Sequences in the queue now."""
    waiting_reason: str | None = None
    """What the head of the queue lacks: "blocks", "seats" or "budget"."""
    block_size: int = 0
    total_blocks: int = 0
    free_blocks: int = 0
    """Blocks that nobody holds; `cached_blocks` of them have content that the prefix cache can give out."""
    cached_blocks: int = 0
    pinned_blocks: int = 0
    token_slots_used: int = 0
    """Slots with a token's key and value, each counted once however many share it."""
    token_slots_reserved: int = 0
    token_slots_wasted: int = 0
    """Slots of held blocks that will not be used: internal fragmentation."""
    token_slots_saved_by_sharing: int = 0
    preemptions: int = 0
    preempted_tokens: int = 0
    """Tokens whose keys and values preemptions gave up."""
    recomputed_tokens: int = 0
    """Of these, those that were not found in the prefix cache afterwards."""
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    evictions: int = 0
    """Blocks whose cached content was given up for another sequence."""
    copied_blocks: int = 0
    """Copy-on-write."""
    prompt_tokens: int = 0
    """Prompt tokens computed, again after preemptions too."""
    generated_tokens: int = 0
    clean_audits: int = 0
    """Times that the memory's books were recomputed from scratch and found right."""
    failed_audits: int = 0
    """Times that they were not. The process ends then; another one goes on with what was in flight."""
    step_seconds: dict[str, float] = {}
    """Time by phase: "schedule", "model", …; "step" is the whole."""


class Updates(msgspec.Struct, tag="updates", array_like=True):
    """What one step had to say, in order."""

    events: list[RequestStarted | SampleUpdate | RequestEnd]
    stats: EngineStats | None = None


EngineMessage: TypeAlias = Ready | StartFailed | RequestRefused | Updates
Event: TypeAlias = RequestStarted | SampleUpdate | RequestEnd
"""What `EngineClient.generate` yields."""

Listener: TypeAlias = Callable[[SampleUpdate], bool]
"""Is offered each update of a running request on the spot, if nothing is before it and the reader of the events waits:
the way of most tokens, on which no task is woken. True: taken, the reader does not get it. False: it comes as ever."""


# What the front's handlers see.


class RequestRefusedError(InvalidRequest):
    """The engine refused a request. Attributes: `error` (its class there), `details` (its numbers)."""

    def __init__(self, error: str, message: str, *, hint: str = "", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.error = error
        self.details = dict(details or {})


class EngineStartFailed(LooseleafError):
    """The engine's process could not start. Attribute: `error`, its class there."""

    def __init__(self, error: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.error = error


class EngineCrashed(LooseleafError):
    """The engine's process ended while it worked on this request, again and again, and not on others: it is given up.

    Attribute: `crashes`.
    """

    def __init__(self, message: str, *, crashes: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.crashes = crashes


class EngineStopped(LooseleafError):
    """The engine is not there any more: the server stops, or could not bring it back."""


class EngineClient(Protocol):
    """The engine, as seen from the front's event loop. Restarts of its process show as a pause, no more."""

    @property
    def state(self) -> ClientState: ...

    @property
    def info(self) -> ModelInfo:
        """Raises `EngineStopped` before the first start is complete."""

    @property
    def num_restarts(self) -> int: ...

    def stats(self) -> EngineStats:
        """The newest snapshot: at most a tenth of a second old while anything runs. Its counts are those of all
        processes so far: they never go down."""

    def generate(self, request: GenerateRequest, listener: Listener | None = None) -> AsyncGenerator[Event, None]:
        """Run a request: `RequestStarted`, `SampleUpdate`s as tokens come (merged for slow readers), `RequestEnd`.

        What `listener` raises is raised here. Closing the iterator early (`aclose`, cancellation) aborts the request:
        its blocks are free within a step. Samples that fail do so in their update ("error"). Raises
        `RequestRefusedError`, `EngineCrashed`, `EngineStopped`.
        """

    def end_sample(self, request_id: str, index: int) -> None:
        """This sample needs no more tokens (its stop string was found). The others go on; updates of it that are
        under way may still come. When all have ended, so has the request."""
