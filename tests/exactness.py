"""Plays a serving scenario, and holds every answer in it against the same request's on its own, bit by bit."""

from __future__ import annotations

import functools
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from looseleaf.engine.engine import Engine
from looseleaf.engine.outputs import CompletionOutput, Logprob, RequestOutput, select_best
from looseleaf.engine.philox import derived_seed
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.kernels import native
from looseleaf.kernels.cpu import CpuKVCache
from looseleaf.memory.errors import OutOfBlocks, PinTooLarge
from looseleaf.memory.interface import ROW_MASK
from looseleaf.models.tokenizer import Tokenizer
from looseleaf.scheduler.interface import StepPlan
from native_case import threads
from serving_scenario import Scenario
from tiny_model import tiny_engine

EngineOf = Callable[..., Engine]
"""`tiny_engine` for one model."""
ROUNDING = 1e-3
PARTITION = 256
"""Positions that attention goes through before it merges."""
ALONE: dict[str, Any] = {
    "block_size": 16,
    "max_num_batched_tokens": 2048,
    "enable_prefix_caching": False,
    "cascade_attention": "off",
}


def bits(number: float | None) -> bytes | None:
    return None if number is None else struct.pack("<d", number)


def logprob_bits(entries: dict[int, Logprob] | None) -> list[tuple[int, bytes, int | None]] | None:
    """In order: token, the bits of its logprob, rank."""
    if entries is None:
        return None
    return [(token, bits(entry.logprob), entry.rank) for token, entry in entries.items()]


@dataclass(frozen=True)
class Answer:
    """What must not differ: tokens, the bits of every logprob, and how it ended."""

    token_ids: list[int]
    logprobs: list[Any]
    ending: tuple[Any, ...]
    """Why it ended, and the bits of its summed logprob and of a beam's score."""
    prompt_logprobs: list[Any] | None

    @classmethod
    def of(cls, output: CompletionOutput, request: RequestOutput) -> Answer:
        prompt = request.prompt_logprobs
        return cls(
            output.token_ids,
            [logprob_bits(entries) for entries in output.logprobs or ()],
            (output.finish_reason, output.stop_reason, bits(output.cumulative_logprob), bits(output.score)),
            None if prompt is None else [logprob_bits(entries) for entries in prompt],
        )

    def begins_with(self, aborted: Answer) -> bool:
        count = len(aborted.token_ids)
        begin = Answer(self.token_ids[:count], self.logprobs[:count], aborted.ending, aborted.prompt_logprobs)
        return begin == aborted if native.is_chosen() else begin.near(aborted)

    def near(self, other: Answer) -> bool:
        """The same tokens, and logprobs apart by rounding alone: what the reference kernels promise."""
        found, expected = ([entries[0][1] for entries in each.logprobs] for each in (self, other))
        return self.token_ids == other.token_ids and all(
            abs(struct.unpack("<d", a)[0] - struct.unpack("<d", b)[0]) < ROUNDING
            for a, b in zip(found, expected, strict=True)
        )


def finished(engine: Engine) -> dict[str, RequestOutput]:
    """Step to the end; the results by request."""
    results: dict[str, RequestOutput] = {}
    while engine.has_unfinished():
        results |= {d.request_id: d.request_output for d in engine.step() if d.request_output is not None}
    return results


class Oracle:
    """Answers of requests that had a new engine each to themselves: in one chunk, nothing cached, on one thread.

    One for each model, KV dtype and instruction set: between those, bits may differ.
    """

    def __init__(self, engine_of: EngineOf, kv_dtype: str) -> None:
        self._engine_of = engine_of
        self._kv_dtype = kv_dtype
        self._known: dict[Any, RequestOutput] = {}

    def answers(self, prompt: list[int], params: SamplingParams, seed: int, adapter: str | None) -> list[Answer]:
        """Of all samples of a request, each drawn as a request of its own; beams only exist together."""
        if params.beam_width is not None:
            request = self._alone(prompt, params, seed, adapter, 0)
            return [Answer.of(output, request) for output in request.outputs]
        single = replace(params, n=1, best_of=None)
        requests = [self._alone(prompt, single, seed, adapter, sample) for sample in range(params.num_samples)]
        outputs = [replace(request.outputs[0], index=i) for i, request in enumerate(requests)]
        if params.num_samples > params.n:
            outputs = select_best(outputs, params.n)
        return [Answer.of(output, requests[0]) for output in outputs]

    def _alone(
        self, prompt: list[int], params: SamplingParams, seed: int, adapter: str | None, sample: int
    ) -> RequestOutput:
        """One request, with the random numbers of sample `sample`."""
        params = replace(params, seed=seed)
        key = (tuple(prompt), repr(params), adapter, 0 if params.greedy else sample)
        if key not in self._known:
            length = len(prompt) + 64
            engine = self._engine_of(
                num_blocks=-(-length // 16) * params.num_samples,
                max_model_len=length,
                kv_cache_dtype=self._kv_dtype,
                **ALONE,
            )
            request_id = engine.add_request(prompt, params, adapter=adapter)
            engine.scheduler.waiting[0].sample = sample
            with threads(1):
                self._known[key] = finished(engine)[request_id]
        return self._known[key]


class Play:
    """One scenario on one engine."""

    def __init__(self, engine_of: EngineOf, oracle: Oracle, scenario: Scenario, tally: Counter[str]) -> None:
        self.engine_of = engine_of
        self.oracle = oracle
        self.scenario = scenario
        self.tally = tally
        self.prompts: list[list[int]] = []
        self.seeds: list[int] = []
        order = sorted(range(len(scenario.arrivals)), key=lambda i: scenario.arrivals[i].step)
        place = {index: number for number, index in enumerate(order)}
        for index, arrival in enumerate(scenario.arrivals):
            begin: list[int] = []
            if (base := arrival.prompt.base) is not None:
                begin = list(self.prompts[base])
                if arrival.prompt.answered:
                    first = scenario.arrivals[base]
                    begin += oracle.answers(begin, first.params, self.seeds[base], first.adapter)[0].token_ids
            self.prompts.append(arrival.prompt.tokens(begin))
            named = arrival.params.seed
            self.seeds.append(derived_seed(0, place[index]) if named is None else named)
        self.arriving = order
        self.engine = self._engine()
        self.engine.on_plan = self._watch
        self.ids: dict[int, str] = {}
        self.results: dict[str, RequestOutput] = {}
        self.aborted: set[str] = set()
        self.pins: list[int] = []

    def _engine(self) -> Engine:
        settings = dict(self.scenario.settings)
        size = settings["block_size"]
        longest, every = 0, 0
        for prompt, arrival in zip(self.prompts, self.scenario.arrivals, strict=True):
            params = arrival.params
            blocks, own = (-(-tokens // size) for tokens in (len(prompt) + params.max_tokens, params.max_tokens))
            every += blocks * params.num_samples
            # The beams of a request run all or none, and may have no more than the prompt in common.
            most = blocks if params.beam_width is None else blocks + params.beam_width * (own + 1)
            longest = max(longest, most)
        num_blocks = longest + round(max(0, every - longest) * self.scenario.roominess)
        if settings["allocator"] != "paged":
            num_blocks = 4 * max(num_blocks, every)
        # Very small steps over very long prompts would take long to show nothing more.
        settings["max_num_batched_tokens"] = max(
            settings["max_num_batched_tokens"],
            sum(map(len, self.prompts)) // 50,
            *(arrival.params.beam_width or 1 for arrival in self.scenario.arrivals),
        )
        longest_request = max(map(len, self.prompts)) + 64
        engine = self.engine_of(num_blocks=num_blocks, max_model_len=longest_request, **settings)
        self._stir(engine)
        return engine

    def _stir(self, engine: Engine) -> None:
        """Blocks in another order, and nothing but NaN in them: what others left there must not matter."""
        if isinstance(engine.kv_cache, CpuKVCache):
            engine.kv_cache.storage.view(torch.uint8).fill_(255)
        if self.scenario.stirred:
            generator = np.random.default_rng(self.scenario.stirred)
            held: list[int] = []
            with suppress(OutOfBlocks):
                lengths = generator.integers(1, 50, engine.memory.max_num_seqs).clip(max=engine.pool.max_model_len)
                held.extend(map(engine.memory.admit, lengths.tolist()))
            for sequence in generator.permutation(held).tolist():
                engine.memory.release(sequence)

    def _preempt_latest(self) -> None:
        """The next decode finds no block, once."""
        append = self.engine.memory.append

        def fail_once(*_: Any) -> Any:
            self.engine.memory.append = append
            raise OutOfBlocks(1, 0)

        self.engine.memory.append = fail_once

    def run(self) -> None:
        """Until everybody has an answer; then compare."""
        step = 0
        while self.arriving or self.engine.has_unfinished():
            if not self.engine.has_unfinished():
                step = max(step, self.scenario.arrivals[self.arriving[0]].step)
            while self.arriving and self.scenario.arrivals[self.arriving[0]].step <= step:
                index = self.arriving.pop(0)
                arrival = self.scenario.arrivals[index]
                self.ids[index] = self.engine.add_request(self.prompts[index], arrival.params, adapter=arrival.adapter)
            self._disturb(step)
            self._collect(self.engine.step())
            self.engine.memory.audit()
            step += 1
        self._check_memory()
        self._compare()

    def _disturb(self, step: int) -> None:
        for each in self.scenario.disturbances:
            if each.step != step:
                continue
            target = each.target % len(self.prompts)
            if each.kind == "abort" and target in self.ids and self.engine.is_running(self.ids[target]):
                self.aborted.add(self.ids[target])
                self._collect(self.engine.abort(self.ids[target]))
                self.tally["aborts"] += 1
            elif each.kind == "preempt":
                self._preempt_latest()
            if not self.scenario.settings["enable_prefix_caching"] or self.scenario.settings["allocator"] != "paged":
                continue
            if each.kind == "pin":
                with suppress(PinTooLarge):
                    pin = self.engine.pin_prefix(self.prompts[target])
                    self.pins.append(pin.pin_id)
                    self.tally["pinned prefixes"] += pin.num_tokens > 0
            elif each.kind == "unpin" and self.pins:
                self.engine.unpin_prefix(self.pins.pop())
            elif each.kind == "reset":
                self.engine.reset_prefix_cache()
                self.pins.clear()
                self.tally["resets"] += 1

    def _collect(self, deltas: Iterable[Any]) -> None:
        self.results |= {d.request_id: d.request_output for d in deltas if d.request_output is not None}

    def _watch(self, plan: StepPlan) -> None:
        self.tally["steps"] += 1
        self.tally["chunks"] += int((plan.num_samples[plan.num_decodes :] == 0).sum())
        self.tally["block copies"] += len(plan.copies.source)
        self.tally["preemptions"] += len(plan.preempted)
        self.tally["cascaded rows"] += self._sharing(plan)
        for sequence in plan.preempted:
            self.tally["preempted samples"] += sequence.sample > 0
            self.tally["preempted prefills"] += sequence.num_tokens == sequence.request.prompt_len
        for sequence in plan.admitted:
            self.tally["recomputed"] += sequence.num_preemptions > 0 and sequence.num_cached == 0
            self.tally["recomputed in part"] += sequence.num_preemptions > 0 and sequence.num_cached > 0

    def _sharing(self, plan: StepPlan) -> int:
        """Decodes whose first partition is attended to together with others'."""
        if all(self.engine.model.config.sliding_windows):
            return 0
        fewest = {"on": 2, "auto": 4, "off": 10**6}[self.scenario.settings["cascade_attention"]]
        whole = plan.seq_ids[: plan.num_decodes][plan.num_computed[: plan.num_decodes] + 1 >= PARTITION]
        blocks = -(-PARTITION // self.engine.memory.block_size)
        tables = Counter(row.tobytes() for row in self.engine.memory.block_tables[whole & ROW_MASK, :blocks])
        return sum(count for count in tables.values() if count >= fewest)

    def _check_memory(self) -> None:
        memory = self.engine.memory
        assert memory.num_free_blocks == memory.num_blocks
        usage = memory.usage()
        assert (usage.token_states, usage.reserved, usage.internal_fragmentation) == (0, 0, 0)
        assert not self.engine.scheduler.has_unfinished()
        if (counts := self.engine.prefix_cache_counts()) is not None:
            self.tally["evictions"] += counts.evictions
            self.engine.reset_prefix_cache()
            memory.audit()
            assert memory.usage().cached == 0

    def _compare(self) -> None:
        self.tally["scenarios"] += 1
        for index, request_id in self.ids.items():
            prompt, arrival, output = self.prompts[index], self.scenario.arrivals[index], self.results[request_id]
            params, seed, adapter = arrival.params, self.seeds[index], arrival.adapter
            found = [Answer.of(sample, output) for sample in output.outputs]
            if request_id in self.aborted:
                if params.beam_width is not None:
                    continue  # what they would have been shows at the end alone
                every = self.oracle.answers(prompt, replace(params, n=params.num_samples), seed, adapter)
                assert all(any(each.begins_with(answer) for each in every) for answer in found), index
                continue
            expected = self.oracle.answers(prompt, params, seed, adapter)
            assert found == expected if native.is_chosen() else all(map(Answer.near, found, expected)), index
            self._count(prompt, params, output)
            self.tally["with an adapter"] += adapter is not None

    def _count(self, prompt: list[int], params: SamplingParams, output: RequestOutput) -> None:
        cached, size = output.num_cached_tokens, self.scenario.settings["block_size"]
        self.tally["requests"] += 1
        self.tally["samples"] += params.n
        self.tally["forks"] += params.num_samples - 1
        self.tally["beams" if params.beam_width else "greedy" if params.greedy else "sampled"] += 1
        self.tally["tokens"] += sum(len(sample.token_ids) for sample in output.outputs)
        self.tally["full hits"] += 0 < cached == len(prompt) - 1
        self.tally["hits"] += cached > 0
        self.tally["hits within a block"] += cached % size > 0
        self.tally["two threads"] += self.scenario.threads == 2


class Stand:
    """Plays scenarios, and counts what happened in them."""

    def __init__(self, model_of: Callable[[str, str], Any], tokenizer: Tokenizer | None = None) -> None:
        """`model_of(family, weights)`: see `Scenario`."""
        self._model_of = functools.cache(model_of)
        self._tokenizer = tokenizer
        self._oracles: dict[tuple[Any, ...], Oracle] = {}
        self.counts: Counter[str] = Counter()

    def play(self, scenario: Scenario) -> None:
        model = self._model_of(scenario.family, scenario.weights)
        engine_of = functools.partial(tiny_engine, model, tokenizer=self._tokenizer)
        isa, kv_dtype = None, scenario.settings["kv_cache_dtype"]
        if native.is_chosen():
            isas = native.available_isas()[::-1]
            isa = isas[scenario.isa % len(isas)]
        oracle = self._oracles.setdefault((model, kv_dtype, isa), Oracle(engine_of, kv_dtype))
        counts: Counter[str] = Counter()
        with native.use_isa(isa) if isa else nullcontext(), threads(scenario.threads):
            Play(engine_of, oracle, scenario, counts).run()
        self.counts += counts

    def require(self, *names: str) -> None:
        """Nothing is shown by scenarios in which nothing happened."""
        missing = [name for name in names if not self.counts[name]]
        assert not missing, f"No scenario had {missing}: {dict(self.counts)}"
