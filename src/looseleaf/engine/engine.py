"""The loop: schedule, build the batch, run the model, sample, commit.

Policy is the scheduler's, memory the manager's, tensors the kernels'. Not thread-safe: one thread calls it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Sequence as Listed
from contextlib import suppress
from typing import Any

import torch

from looseleaf.engine.adapters import adapter_number
from looseleaf.engine.beam_params import check_candidates
from looseleaf.engine.beam_search import BeamSearch
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.generation_request import GenerationRequest, ReadRequest
from looseleaf.engine.grammar_compiler import GrammarCompiler
from looseleaf.engine.kv_pool import PoolSize
from looseleaf.engine.model_step import ModelStep
from looseleaf.engine.outputs import Logprob, RequestMetrics
from looseleaf.engine.philox import derived_seed
from looseleaf.engine.prefix_caching import Pin, PrefixCaching, cache_identity
from looseleaf.engine.prompts import Prompt, TokenPrompt, read_prompt
from looseleaf.engine.resumption import check_known, resume
from looseleaf.engine.running_beams import conclude
from looseleaf.engine.running_request import RunningRequest, RunningSample, SampleDelta
from looseleaf.engine.sampler import SamplerOutput
from looseleaf.engine.sampling_params import SamplingParams, as_params
from looseleaf.engine.sampling_rows import SamplingRows
from looseleaf.engine.seating import Seating
from looseleaf.engine.seats import Seats
from looseleaf.engine.stop import NO_TEXT, Finish, StopChecker
from looseleaf.errors import ConfigurationError
from looseleaf.kernels.factory import make_kv_cache
from looseleaf.kernels.interface import KVCache
from looseleaf.memory.events import EventStream
from looseleaf.memory.factory import make_manager
from looseleaf.memory.manager import BlockManager
from looseleaf.memory.prefix_cache import CacheCounts
from looseleaf.models.interface import Decoder
from looseleaf.models.tokenizer import Tokenizer
from looseleaf.scheduler.errors import StepOutOfOrder
from looseleaf.scheduler.interface import Request, Sequence, SequenceState, StepPlan
from looseleaf.scheduler.scheduler import Scheduler


class Engine:
    """One model, one pool of blocks, and the requests that run in it.

    `add_request` checks and queues; each `step` moves every scheduled request on and returns what came out.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        config: EngineConfig,
        pool: PoolSize,
        *,
        kv_cache: KVCache | None = None,
        model_revision: str = "",
        wait_for_memory: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`kv_cache`: that of an idle engine of the same model and pool, to be shared instead of a new one.
        `model_revision`: which weights these are; part of what prefix-cache entries are valid for. `wait_for_memory`:
        see `kernels.pool_memory.allocate_pool`.

        Raises `ConfigurationError` for an end-of-sequence token that the model does not have.
        """
        # Model folders name ends in several files that need not agree: each of them is one.
        self.eos_token_ids = tuple(dict.fromkeys((*tokenizer.eos_token_ids, *model.config.eos_token_ids)))
        vocab_size = model.config.vocab_size
        if outside := [token for token in self.eos_token_ids if token >= vocab_size]:
            raise ConfigurationError(
                f"The end-of-sequence tokens {outside} lie outside the model's vocabulary of {vocab_size}.",
                hint="The tokenizer and the weights are of different models.",
            )
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.pool = pool
        self.events = EventStream()
        self.memory = make_manager(
            config.allocator,
            pool.num_blocks,
            pool.block_size,
            config.max_num_seqs,
            pool.blocks_per_longest,
            max_model_len=pool.max_model_len,
            max_pinned_share=config.max_pinned_share,
            events=self.events,
        )
        self.kv_cache = kv_cache or make_kv_cache(
            num_layers=pool.num_layers,
            num_blocks=pool.num_blocks,
            block_size=pool.block_size,
            num_kv_heads=pool.num_kv_heads,
            head_dim=pool.head_dim,
            dtype=pool.kv_dtype,
            lock_memory=config.lock_memory,
            wait_for_memory=wait_for_memory,
        )
        self.scheduler = Scheduler(config.scheduler_config(pool.max_model_len), self.memory)
        self.on_plan: Callable[[StepPlan], None] | None = None
        """Told each step's plan before it runs, while its sequences hold their blocks; for whoever measures."""
        self._clock = clock
        self._writer = object()
        seats = Seats(config.max_num_seqs, pool.max_model_len)
        self._prefix_caching = PrefixCaching(
            self.memory if config.enable_prefix_caching and isinstance(self.memory, BlockManager) else None,
            seats,
            cache_identity(model.config, model_revision, pool),
        )
        self._requests: dict[str, RunningRequest] = {}
        self._samples: dict[Sequence, RunningSample] = {}
        sampling = SamplingRows(config.max_num_seqs, self.eos_token_ids)
        self._seating = Seating(seats, sampling, self._samples)
        self._model_step = ModelStep(
            model, self.kv_cache, self.memory, seats, sampling, self._samples, config.cascade_attention
        )
        self._grammars = GrammarCompiler(tokenizer, vocab_size, self.eos_token_ids)
        self._num_added = 0
        self._undelivered: list[SampleDelta] = []
        """What ended in a step that failed: the next step returns it."""
        self._token_texts: dict[int, str] = {}

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    def has_unfinished(self) -> bool:
        return bool(self._requests)

    def read_prompt(self, prompt: Prompt) -> TokenPrompt:
        """Tokenise and check a prompt. Raises `InvalidPrompt` or a chat template's typed error."""
        return read_prompt(prompt, self.tokenizer, self.vocab_size)

    def check(self, request_id: str, prompt: TokenPrompt, params: SamplingParams, adapter: str | None = None) -> None:
        """Raise what `add_request` would raise for this request, without adding it."""
        self._check_params(params)
        adapter_number(self.model.adapters, adapter)
        self.scheduler.check(self._request(request_id, prompt, params))

    def read_requests(
        self,
        requests: Iterable[GenerationRequest | tuple[Prompt | TokenPrompt, SamplingParams]],
        name: str = "prompts",
    ) -> list[ReadRequest]:
        """Tokenise and check requests before one is added; raises what `add_request` would, naming `name[index]`."""
        read = []
        for index, (prompt, params, adapter) in enumerate(GenerationRequest(*each) for each in requests):
            tokens = prompt if isinstance(prompt, TokenPrompt) else self.read_prompt(prompt)
            self.check(f"{name}[{index}]", tokens, params, adapter)
            read.append(ReadRequest(tokens, params, adapter))
        return read

    def add_request(
        self,
        prompt: Prompt | TokenPrompt,
        params: SamplingParams | Mapping[str, Any] | None = None,
        *,
        adapter: str | None = None,
        request_id: str | None = None,
        cache_salt: str = "",
        priority: int = 0,
        tenant: str = "",
        weight: float = 1.0,
        known: Listed[Listed[int]] = (),
        ended: Collection[int] = (),
    ) -> str:
        """Queue a request and return its id. Whatever is wrong with it is raised here, before anything changes.

        `adapter`: the name of one of `EngineConfig.lora`. `cache_salt`: requests of different salts, or adapters, never
        share cached blocks; for callers that serve several parties. `priority`, `tenant`, `weight`: see
        `scheduler.interface.Request`; they count under the scheduling policies that ask for them. `known`: by sample,
        output tokens of an earlier run of the same request that was cut off; it goes on with the next ones, as if it
        had never stopped, given the same seed. `ended`: samples that had ended in it. (See `engine.resumption`.)

        Raises `InvalidPrompt`, `InvalidParameter`, `InvalidGrammar`, `UnknownAdapter`, `RequestTooLarge` (with the
        largest length that would fit), or `InvalidRequest` for an id in use.
        """
        params = as_params(params)
        prompt = prompt if isinstance(prompt, TokenPrompt) else self.read_prompt(prompt)
        self._check_params(params)
        number = adapter_number(self.model.adapters, adapter)
        request_id = self._free_id() if request_id is None else request_id
        counts = check_known(known, ended, params, self.vocab_size)
        scope = self._prefix_caching.scope(cache_salt, adapter)
        request = self._request(request_id, prompt, params, scope, counts)
        request.priority, request.tenant, request.weight = priority, tenant, weight
        self.scheduler.check(request)  # before anything is made for each of its samples
        seed = derived_seed(self.config.seed, self._num_added) if params.seed is None else params.seed
        running = RunningRequest(
            request,
            prompt,
            params,
            seed,
            RequestMetrics(request.arrival),
            self._decode_token if params.detokenize else None,
            number,
        )
        if params.beam_width is not None:
            running.search = BeamSearch(params.beam_width, params, self._end_token_ids(params), request.max_tokens)
        grammar = None if params.structured is None else self._grammars.start(params.structured)
        for sequence in request.sequences:
            stop = StopChecker(
                params,
                self.tokenizer.detokenizer(params.skip_special_tokens) if params.detokenize else NO_TEXT,
                eos_token_ids=self.eos_token_ids,
                max_tokens=request.max_tokens,
                grammar=grammar.copy() if grammar is not None else None,
            )
            running.samples.append(RunningSample(running, sequence, stop))
        resume(running, known, ended)
        if known and request.prefix is not None:
            for entry in running.samples:
                entry.sequence.prefix = self._prefix_caching.prefix(entry.known_tokens, request.prefix.scope)
        self.scheduler.add(request)  # the last that may refuse
        self._num_added += 1
        self._requests[request_id] = running
        self._samples.update((s.sequence, s) for s in running.samples)
        return request_id

    def abort(self, request_id: str) -> list[SampleDelta]:
        """End a request now; its blocks are free at once. Unknown or finished ids are passed over."""
        running = self._requests.get(request_id)
        if running is None:
            return []
        self.scheduler.abort(request_id)
        return self._end(running, Finish("abort"))

    def end_sample(self, request_id: str, index: int) -> list[SampleDelta]:
        """End one sample of a request now (finish reason "abort"); the others go on. What is unknown, or over, is
        passed over.

        Raises `InvalidRequest` for a beam, and for a sample without a token that others are to fork from.
        """
        running = self._requests.get(request_id)
        if running is None or not 0 <= index < len(running.samples):
            return []
        entry = running.samples[index]
        if entry.stop.finish is not None:
            return []
        self.scheduler.end_sample(request_id, index)
        self._seating.leave(entry.sequence)
        delta = entry.delta(entry.end(Finish("abort")), [])
        self._close_if_finished(delta)
        return [delta]

    def step(self) -> list[SampleDelta]:
        """Run one step. Returns what each sample that got a token, or ended, has to show for it.

        If the model fails, the step's requests are aborted (the next step says so) and the error is passed on; the
        others are unharmed.
        """
        if self.kv_cache.writer is not self._writer:
            self._prefix_caching.reset()
            self.kv_cache.writer = self._writer
        now = self._clock()
        self._prefix_caching.expire_pins(now)
        plan = self.scheduler.schedule(now)
        try:
            deltas = self._advance(plan)
        except BaseException:
            self._drop(plan)
            raise
        if self._undelivered:
            deltas, self._undelivered = self._undelivered + deltas, []
        return deltas

    def is_running(self, request_id: str) -> bool:
        """Whether a request of this id is queued or running."""
        return request_id in self._requests

    def prompt_logprobs(self, request_id: str) -> list[dict[int, Logprob] | None] | None:
        """Those of a queued or running request, as far as its prompt has been computed; None if it wants none."""
        running = self._requests.get(request_id)
        return None if running is None or running.params.prompt_logprobs is None else list(running.prompt_logprobs)

    def pin_prefix(
        self,
        prompt: Prompt | TokenPrompt,
        *,
        adapter: str | None = None,
        cache_salt: str = "",
        ttl_seconds: float = math.inf,
    ) -> Pin:
        """Keep what is cached of a prompt's full blocks from eviction, for `ttl_seconds` or until `unpin_prefix`.

        Pins give way, oldest first, when a request would otherwise have to wait. Raises `PinTooLarge` beyond
        `max_pinned_share` of the pool, `UnknownAdapter`, `InvalidRequest` for a time that is none, and
        `ConfigurationError` without a prefix cache.
        """
        prompt = prompt if isinstance(prompt, TokenPrompt) else self.read_prompt(prompt)
        adapter_number(self.model.adapters, adapter)
        scope = self._prefix_caching.scope(cache_salt, adapter)
        return self._prefix_caching.pin(prompt.token_ids, scope, self._clock(), ttl_seconds)

    def unpin_prefix(self, pin_id: int) -> None:
        """Raises `UnknownPin`."""
        self._prefix_caching.unpin(pin_id)

    def reset_prefix_cache(self) -> None:
        """Forget what is cached, and all pins. Safe while requests run: they keep their blocks, and what they compute
        from then on is not cached."""
        self._prefix_caching.reset()

    def prefix_cache_counts(self) -> CacheCounts | None:
        """What the prefix cache has done since the start; None without one."""
        return self._prefix_caching.counts()

    def _advance(self, plan: StepPlan) -> list[SampleDelta]:
        # First of all: a plan also carries copies for sequences that are not in it, and must not fail before them.
        if plan.copies.source.size:
            self.kv_cache.copy_blocks(*(torch.from_numpy(ids) for ids in plan.copies))
        self._follow_moves(plan)
        for sequence in plan.admitted:
            self._seating.take(sequence)
        if not plan:
            return []
        if self.on_plan is not None:
            self.on_plan(plan)
        result = self._model_step.run(plan)
        parents = result.parents
        deltas, finished = self._record(result.entries, result.sampled)
        for running in parents:
            running.metrics.first_token_time = running.metrics.first_token_time or self._clock()
            if running.finished:
                finished += running.request.sequences
                deltas += running.whole_deltas()
        self._prefix_caching.enter_ended(self._samples[sequence] for sequence in finished)
        self.scheduler.commit(plan, finished, self._clock(), {r.request: parents[r] for r in parents})
        decoded = self._seating.settle(result.entries, result.sampled.token_ids)
        for running in parents:
            self._seating.settle_beams(running, parents[running])
            decoded += (beam for beam in running.samples if beam.sequence.seq_id >= 0)
        self._prefix_caching.enter_decoded(decoded)
        for delta in reversed(deltas):  # the last of a request has its result
            if delta.finish_reason is not None:
                self._close_if_finished(delta)
        return deltas

    def _free_id(self) -> str:
        number = self._num_added
        while f"request-{number}" in self._requests:
            number += 1
        return f"request-{number}"

    def _request(
        self,
        request_id: str,
        prompt: TokenPrompt,
        params: SamplingParams,
        scope: str | None = None,
        known: tuple[int | None, ...] = (),
    ) -> Request:
        if params.prompt_logprobs is not None:
            scope = None  # they come from computing the prompt
        room = self.scheduler.largest_of(len(prompt.token_ids), params.beam_width or 1) - len(prompt.token_ids)
        return Request(
            request_id,
            prompt_len=len(prompt.token_ids),
            max_tokens=params.most_tokens(room),
            num_samples=params.num_samples,
            beams=params.beam_width is not None,
            known=known,
            arrival=self._clock(),
            prefix=self._prefix_caching.prefix(prompt.token_ids, scope),
        )

    def _record(self, entries: list[RunningSample], sampled: SamplerOutput) -> tuple[list[SampleDelta], list[Sequence]]:
        """Give every sample its token. Returns what to show, and the sequences that are over."""
        now = self._clock()
        deltas: list[SampleDelta] = []
        finished: list[Sequence] = []
        for i, (entry, token_id) in enumerate(zip(entries, sampled.token_ids.tolist(), strict=True)):
            if i in sampled.failures:
                tokens = []
                text = entry.end(Finish("error", str(sampled.failures[i])))
            else:
                tokens = [token_id]
                text = entry.append(token_id, sampled.logprobs.get(i))
                if entry.request.metrics.first_token_time is None:
                    entry.request.metrics.first_token_time = now
            if entry.stop.finish is not None:
                finished.append(entry.sequence)
            deltas.append(entry.delta(text, tokens))
        return deltas, finished

    def _close_if_finished(self, delta: SampleDelta) -> None:
        running = self._requests.get(delta.request_id)
        if running is not None and running.finished:
            self._forget(running)
            delta.request_output = running.output()

    def _end(self, running: RunningRequest, finish: Finish) -> list[SampleDelta]:
        """Close a request that the scheduler has let go of; the last of what is returned has its result."""
        deltas = []
        for entry in running.samples:
            self._seating.leave(entry.sequence)
            if entry.stop.finish is None and running.search is None:
                deltas.append(entry.delta(entry.end(finish), []))
        if running.search is not None and conclude(running, running.search, finish):
            deltas = running.whole_deltas()
        self._forget(running)
        # All may have ended in a step that failed before it could say so.
        deltas = deltas or [running.samples[-1].delta("", [])]
        deltas[-1].request_output = running.output()
        return deltas

    def _drop(self, plan: StepPlan) -> None:
        """A plan that could not be run, or not to the end: its requests end, the scheduler goes on."""
        # `_advance` may not have come to it, and sequences that are not in the plan will run on the strength of it.
        self._follow_moves(plan)
        for request_id in dict.fromkeys(sequence.request.request_id for sequence in plan.sequences):
            self._undelivered += self.abort(request_id)
        with suppress(StepOutOfOrder):  # it was committed, or is empty
            self.scheduler.commit(plan, (), self._clock())

    def _forget(self, running: RunningRequest) -> None:
        running.metrics.finished_time = self._clock()
        del self._requests[running.request.request_id]
        for entry in running.samples:
            del self._samples[entry.sequence]

    def _follow_moves(self, plan: StepPlan) -> None:
        """Seats and prefixes of sequences that lost their memory or came by other; no harm if it is done twice."""
        for sequence in plan.preempted:
            self._seating.leave(sequence)
            self._renew_prefix(sequence)
        for request in plan.formed:
            self._seating.bind_beams(request)

    def _renew_prefix(self, sequence: Sequence) -> None:
        """What it has generated is found again too, when it comes back."""
        if sequence.request.prefix is not None and sequence.state is SequenceState.WAITING:
            tokens = self._samples[sequence].known_tokens[: sequence.prefill_len]
            sequence.prefix = self._prefix_caching.prefix(tokens, sequence.request.prefix.scope)

    def _check_params(self, params: SamplingParams) -> None:
        """Raises `InvalidParameter`, or `InvalidGrammar`."""
        params.validate_for(self.vocab_size)
        if params.structured is not None:
            self._grammars.start(params.structured)
        check_candidates(params, self._end_token_ids(params), self.vocab_size)

    def _end_token_ids(self, params: SamplingParams) -> set[int]:
        return {*params.stop_token_ids, *(() if params.ignore_eos else self.eos_token_ids)}

    def _decode_token(self, token_id: int) -> str:
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._token_texts[token_id] = self.tokenizer.decode([token_id], skip_special_tokens=False)
        return text
