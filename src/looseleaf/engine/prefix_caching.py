"""The engine's side of the prefix cache: under which scope a request shares, and when its tokens are entered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from looseleaf.engine.adapter_names import MAX_NAME_LENGTH
from looseleaf.engine.kv_pool import PoolSize
from looseleaf.engine.outputs import RequestOutput
from looseleaf.engine.running_request import RunningSample
from looseleaf.engine.seats import Seats
from looseleaf.errors import ConfigurationError, InvalidRequest
from looseleaf.memory.manager import BlockManager
from looseleaf.memory.prefix import Prefix
from looseleaf.memory.prefix_cache import CacheCounts
from looseleaf.models.config import ModelConfig
from looseleaf.models.tokenizer import Tokenizer

_TEXT_BEFORE = 12
"""Tokens shown before the one that differs."""


class Pin(NamedTuple):
    """A prefix kept from eviction."""

    pin_id: int
    num_tokens: int
    """Those of the cached full blocks; 0 when nothing of it has been computed yet."""


class PrefixCaching:
    """Turns known tokens into prefixes that may share, and registers what has been computed."""

    def __init__(self, memory: BlockManager | None, seats: Seats, identity: str) -> None:
        """`memory` None: there is no cache. `identity`: of everything that all requests' keys and values depend on."""
        self._memory = memory
        self._seats = seats
        self._identity = identity

    def scope(self, salt: str, adapter: str | None) -> str:
        """What a request's blocks may be shared within. Raises `InvalidRequest` for a salt of absurd length."""
        if not isinstance(salt, str) or len(salt) > MAX_NAME_LENGTH:
            what = f"of {len(salt)} characters" if isinstance(salt, str) else f"of type {type(salt).__name__}"
            raise InvalidRequest(
                f"A cache salt {what} is refused.", hint=f"Use a text of at most {MAX_NAME_LENGTH} characters."
            )
        return json.dumps([self._identity, adapter, salt], ensure_ascii=False, separators=(",", ":"))

    def prefix(self, token_ids: Sequence[int], scope: str | None) -> Prefix | None:
        """What is given to the scheduler for a sequence that knows these tokens. `scope` None: it shares nothing."""
        if self._memory is None or scope is None:
            return None
        return Prefix(np.array(token_ids, np.int32), scope)

    def enter_decoded(self, samples: Iterable[RunningSample]) -> None:
        """After the commit: of running samples, those whose newest computed token filled a block."""
        if self._memory is None:
            return
        size = self._memory.block_size
        for sample in samples:
            computed = sample.sequence.num_tokens - 1
            if computed % size == 0:
                self._memory.register(sample.sequence.seq_id, self._seats.tokens[sample.seat], computed)

    def enter_ended(self, samples: Iterable[RunningSample]) -> None:
        """Before the commit that ends them: all that they have computed, this step included."""
        if self._memory is None:
            return
        for sample in samples:
            sequence = sample.sequence
            if sequence.seq_id >= 0:  # not one that ends before it forks
                self._memory.register(
                    sequence.seq_id,
                    self._seats.tokens[sample.seat],
                    sequence.num_tokens,
                    ended=not sequence.request.pending_forks,  # they will write into its begun block
                )

    def pin(self, token_ids: Sequence[int], scope: str, now: float, ttl_seconds: float) -> Pin:
        """Raises `PinTooLarge`, `InvalidRequest`, or `ConfigurationError` without a cache."""
        if not isinstance(ttl_seconds, int | float) or not ttl_seconds >= 0:
            raise InvalidRequest(f"ttl_seconds is {ttl_seconds!r} but must be a number of seconds, at least 0.")
        prefix = Prefix(np.array(token_ids, np.int32), scope)
        return Pin(*self._require().pin(prefix, expires=now + ttl_seconds))

    def unpin(self, pin_id: int) -> None:
        """Raises `UnknownPin`."""
        self._require().unpin(pin_id)

    def expire_pins(self, now: float) -> None:
        if self._memory is not None:
            self._memory.expire_pins(now)

    def reset(self) -> None:
        if self._memory is not None:
            self._memory.reset_prefix_cache()

    def counts(self) -> CacheCounts | None:
        return None if self._memory is None else self._memory.cache_counts()

    def _require(self) -> BlockManager:
        if self._memory is None:
            raise ConfigurationError(
                "This engine has no prefix cache.", hint="Set enable_prefix_caching, and the allocator paged."
            )
        return self._memory


def cache_identity(model: ModelConfig, revision: str, pool: PoolSize) -> str:
    """A short name of model, weights and form of the cache: keys and values of another are never shared."""
    described = json.dumps([repr(model), revision, str(pool.kv_dtype)])
    return blake2b(described.encode(), digest_size=16).hexdigest()


def explain_divergence(output: RequestOutput, tokenizer: Tokenizer) -> str | None:
    """Why the prefix cache held no more of this prompt, in words; None where nothing like it went on otherwise."""
    divergence, prompt = output.cache_divergence, output.prompt_token_ids
    if divergence is None:
        return None
    at = divergence.position
    before, own, cached = (
        tokenizer.decode(list(tokens), skip_special_tokens=False)
        for tokens in (prompt[max(0, at - _TEXT_BEFORE) : at], prompt[at : at + 1], [divergence.cached_token])
    )
    place = f"after {before!r}" if at else "at its beginning"
    return (
        f"The prompt parts from the most similar cached one at token {at} of {len(prompt)}, {place}: "
        f"{own!r} here, {cached!r} there."
    )
