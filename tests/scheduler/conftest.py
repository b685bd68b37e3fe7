"""A naive KV memory, and a driver that runs the scheduler without a model and checks every step."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np
import pytest

from looseleaf.errors import RequestTooLarge
from looseleaf.memory import BlockManager, make_manager
from looseleaf.memory.errors import OutOfBlocks, UnknownSequence
from looseleaf.memory.interface import NO_COPIES, ROW_MASK, CopyPairs, KVMemory, SlotUsage
from looseleaf.scheduler import Request, Scheduler, SchedulerConfig, Sequence, SequenceState, StepPlan

STEPS_PER_TOKEN = 4
"""More steps than this for each token that the requests may ever have are a livelock."""

ALLOCATORS = ("naive", "naive-unshared", "paged", "contiguous-max", "contiguous-pow2", "contiguous-oracle")


class NaiveMemory:
    """Paged memory out of dicts and lists. `shares=False`: a fork copies every block, as contiguous memory does."""

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, max_blocks_per_seq: int, *, shares: bool):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.max_num_seqs, self.max_blocks_per_seq = max_num_seqs, max_blocks_per_seq
        self.shares = shares
        self.step = 0
        self.tables: dict[int, list[int]] = {}
        self.counts: dict[int, int] = {}
        self.filled: dict[int, int] = {}
        self.generation = 0

    @property
    def free(self) -> list[int]:
        held = {block for table in self.tables.values() for block in table}
        return [block for block in range(self.num_blocks) if block not in held]

    @property
    def num_free_blocks(self) -> int:
        return len(self.free)

    @property
    def lengths(self) -> np.ndarray:
        lengths = np.zeros(self.max_num_seqs, np.int32)
        for seq, count in self.counts.items():
            lengths[seq & ROW_MASK] = count
        return lengths

    @property
    def block_tables(self) -> np.ndarray:
        tables = np.zeros((self.max_num_seqs, self.max_blocks_per_seq), np.int32)
        for seq, table in self.tables.items():
            tables[seq & ROW_MASK, : len(table)] = table
        return tables

    def blocks_for(self, num_tokens: int) -> int:
        return ceil(num_tokens / self.block_size)

    def can_ever_fit(self, num_tokens: int, *, num_sequences: int = 1, shared_tokens: int = 0) -> bool:
        shared = shared_tokens // self.block_size if self.shares and num_sequences > 1 else 0
        if self.shares and shared_tokens == num_tokens:
            num_sequences = 1
        own = self.blocks_for(num_tokens) - shared
        return own + shared <= self.max_blocks_per_seq and shared + num_sequences * own <= self.num_blocks

    def can_admit(
        self,
        num_tokens: int,
        *,
        final_tokens: int | None = None,
        keep_free: int = 0,
        prefix: None = None,
        num_sequences: int = 1,
    ) -> bool:
        del final_tokens, num_sequences
        assert prefix is None, "these workloads share nothing"
        return self.blocks_for(num_tokens) + keep_free <= self.num_free_blocks

    def admit(self, num_tokens: int, *, final_tokens: int | None = None, request_id: str = "", filled: int = 0) -> int:
        del final_tokens, request_id
        return self._enter(self._take(self.blocks_for(num_tokens)), num_tokens, filled)

    def _take(self, count: int) -> list[int]:
        free = self.free
        if count > len(free):
            raise OutOfBlocks(count, len(free))
        return free[:count]

    def _enter(self, table: list[int], count: int, filled: int) -> int:
        taken = {seq & ROW_MASK for seq in self.tables}
        row = next(row for row in range(self.max_num_seqs) if row not in taken)
        self.generation += 1
        seq = self.generation * (ROW_MASK + 1) + row
        self.tables[seq], self.counts[seq], self.filled[seq] = table, count, filled
        return seq

    def _growth(self, seqs: list[int], num_tokens: int) -> list[tuple[int, int]]:
        """(sequence, block to copy or -1) for each block that more tokens each would take."""
        holders = Counter(block for table in self.tables.values() for block in table)
        growth = []
        for seq in seqs:
            count, table = self.counts[seq], self.tables[seq]
            if count < len(table) * self.block_size and holders[table[-1]] > 1:
                holders[table[-1]] -= 1
                growth.append((seq, table[-1]))
            growth += [(seq, -1)] * (self.blocks_for(count + num_tokens) - len(table))
        return growth

    def append(self, seqs: np.ndarray, num_tokens: int = 1) -> CopyPairs:
        growth = self._growth(seqs.tolist(), num_tokens)
        copies = []
        for (seq, source), block in zip(growth, self._take(len(growth)), strict=True):
            if source < 0:
                self.tables[seq].append(block)
            else:
                copies.append((source, block))
                self.tables[seq][-1] = block
        for seq in seqs.tolist():
            self.counts[seq] += num_tokens
        return _pairs(copies)

    def fill(self, seqs: np.ndarray, num_tokens: np.ndarray | int) -> None:
        for seq, count in zip(seqs.tolist(), np.broadcast_to(num_tokens, len(seqs)).tolist(), strict=True):
            self.filled[seq] += count
            assert self.filled[seq] <= self.counts[seq]

    def fork(self, seq: int, *, request_id: str = "", final_tokens: int | None = None) -> tuple[int, CopyPairs]:
        del request_id, final_tokens
        table = self.tables[seq]
        if self.shares:
            return self._enter(list(table), self.counts[seq], self.filled[seq]), NO_COPIES
        own = self._take(len(table))
        return self._enter(own, self.counts[seq], self.filled[seq]), _pairs(list(zip(table, own, strict=True)))

    def truncate(self, seq: int, num_tokens: int) -> None:
        raise NotImplementedError

    def release(self, seq: int) -> None:
        if seq not in self.tables:
            raise UnknownSequence(f"{seq} is not alive.")
        del self.tables[seq], self.counts[seq], self.filled[seq]

    def table(self, seq: int) -> np.ndarray:
        return np.array(self.tables[seq], np.int32)

    def usage(self) -> SlotUsage:
        raise NotImplementedError

    def audit(self) -> None:
        for seq, table in self.tables.items():
            assert len(table) == self.blocks_for(self.counts[seq])

    def describe(self) -> dict[str, Any]:
        return {}


def _pairs(copies: list[tuple[int, int]]) -> CopyPairs:
    return CopyPairs(np.array([s for s, _ in copies], np.int32), np.array([d for _, d in copies], np.int32))


def memory_for(allocator: str, config: SchedulerConfig, *, num_blocks: int, block_size: int) -> KVMemory:
    per_seq = ceil(config.max_model_len / block_size)
    if allocator.startswith("naive"):
        return NaiveMemory(num_blocks, block_size, config.max_num_seqs, per_seq, shares=allocator == "naive")
    return make_manager(
        allocator,
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=config.max_num_seqs,
        max_blocks_per_seq=per_seq,
    )


@dataclass
class Workload:
    """Requests by the step before which they arrive, and what befalls them."""

    config: SchedulerConfig
    num_blocks: int
    block_size: int
    requests: list[tuple[int, Request]]
    num_outputs: dict[tuple[str, int], int]
    """Tokens after which (request, sample) stops."""
    aborts: dict[int, list[tuple[str, bool]]] = field(default_factory=dict)
    """By step: (request, while the plan is in flight)."""
    seed: int = 0
    """From which the beams that go on are drawn."""


def draw_workload(rng: random.Random, *, aborts: bool = False) -> Workload:
    config = SchedulerConfig(
        max_num_batched_tokens=rng.choice([rng.randint(1, 8), rng.randint(1, 64)]),
        max_num_seqs=rng.randint(1, 10),
        max_model_len=rng.randint(2, 80),
        watermark=rng.choice([0.0, 0.01, 0.2, 0.9]),
        max_bypass=rng.randint(0, 4),
    )
    block_size = rng.randint(1, 8)
    num_blocks = rng.randint(1, 3 * ceil(config.max_model_len / block_size) + 2)
    longest = min(config.max_model_len, num_blocks * block_size + 1)
    requests, num_outputs = [], {}
    arrival = 0
    for number in range(rng.randint(1, 12)):
        arrival += rng.choice([0, 0, 0, 1, rng.randint(0, 20)])
        if rng.random() < 0.9:
            prompt_len = rng.randint(1, min(40, longest - 1))
            max_tokens = rng.randint(1, min(24, longest - prompt_len))
            num_samples = rng.choice([1, 1, 1, rng.randint(1, min(5, config.max_num_seqs))])
        else:  # possibly more than can ever run
            prompt_len, max_tokens, num_samples = rng.randint(1, 60), rng.randint(1, 40), rng.randint(1, 5)
        request = Request(f"r{number}", prompt_len, max_tokens, num_samples)
        requests.append((arrival, request))
        for sample in range(request.num_samples):
            early = rng.randint(1, request.max_tokens)
            num_outputs[request.request_id, sample] = rng.choice([early, request.max_tokens])
    workload = Workload(config, num_blocks, block_size, requests, num_outputs)
    if aborts:
        draw_aborts(rng, workload, arrival)
    return workload


def draw_aborts(rng: random.Random, workload: Workload, last_arrival: int) -> None:
    for _, request in workload.requests:
        if rng.random() < 0.6:
            step = rng.randint(1, last_arrival + 30)
            workload.aborts.setdefault(step, []).append((request.request_id, rng.random() < 0.5))


def draw_beam_workload(rng: random.Random, *, aborts: bool = False) -> Workload:
    """Beams, mostly, that grow long beside short prompts: admitted together, too many for the pool later."""
    config = SchedulerConfig(
        max_num_batched_tokens=rng.choice([rng.randint(2, 12), 64]),
        max_num_seqs=rng.randint(2, 16),
        max_model_len=64,
        watermark=rng.choice([0.0, 0.1]),
        max_bypass=rng.randint(0, 4),
    )
    block_size = rng.randint(1, 8)
    num_blocks = rng.randint(16, 120) // block_size + 1
    requests, num_outputs = [], {}
    arrival = 0
    for number in range(rng.randint(1, 6)):
        arrival += rng.choice([0, 0, rng.randint(0, 6)])
        searches = rng.random() < 0.7
        width = rng.randint(1, min(6, config.max_num_seqs, config.max_num_batched_tokens) if searches else 2)
        request = Request(f"r{number}", rng.randint(1, 12), rng.randint(1, 24), width, beams=searches)
        requests.append((arrival, request))
        for sample in range(width):
            length = rng.choice([rng.randint(1, request.max_tokens), request.max_tokens])
            num_outputs[request.request_id, sample] = num_outputs[request.request_id, 0] if sample else length
    workload = Workload(config, num_blocks, block_size, requests, num_outputs, seed=rng.randrange(1000))
    if aborts:
        draw_aborts(rng, workload, arrival)
    return workload


class Driver:
    """Plays engine: runs plans on a pool of token names instead of tensors, with books of its own."""

    def __init__(self, workload: Workload, allocator: str) -> None:
        self.workload = workload
        self.config = workload.config
        self.memory = memory_for(allocator, self.config, num_blocks=workload.num_blocks, block_size=workload.block_size)
        self.scheduler = Scheduler(self.config, self.memory)
        self.slots = np.full(workload.num_blocks * workload.block_size, -1, np.int64)
        self.accepted: list[Request] = []
        self.ended_early: set[Sequence] = set()
        self.computed: dict[Sequence, int] = {}
        self.passes: Counter[Sequence] = Counter()
        self.passes_as_head: Counter[Sequence] = Counter()
        self.num_earlier: dict[Sequence, int] = {}
        self.last_turn: dict[Sequence, int] = {}
        self.num_tokens_run = 0
        self.num_preempted = 0
        self.plans: list[tuple[Any, ...]] = []
        self.rng = random.Random(workload.seed)
        self.paths: dict[Sequence, list[int]] = {}
        """Names of a beam's output tokens."""
        self.num_named = 0
        self.returning: set[Sequence] = set()
        self.num_returns: Counter[Request] = Counter()

    def run(self) -> Driver:
        arrivals = sorted(self.workload.requests, key=lambda item: item[0])
        last_arrival = arrivals[-1][0]
        step = 0
        while arrivals or self.scheduler.has_unfinished():
            step += 1
            known = sum(request.final_len * request.num_samples for request in self.accepted)
            assert step <= last_arrival + 1 + STEPS_PER_TOKEN * known, "a livelock"
            while arrivals and arrivals[0][0] < step:
                self.add(arrivals.pop(0)[1])
            self.strike(step, in_flight=False)
            self.step(step)
            self.check_between_steps()
            if step % 3 == 0:  # an audit costs as much as the rest of a step, and damage stays
                self.memory.audit()
        self.check_end()
        return self

    def add(self, request: Request) -> None:
        if not self.can_ever_run(request):
            with pytest.raises(RequestTooLarge):
                self.scheduler.add(request)
        else:
            self.scheduler.add(request)
            unended = sum(s.state is not SequenceState.FINISHED for r in self.accepted for s in r.sequences)
            self.num_earlier |= {sequence: unended + sequence.sample for sequence in request.sequences}
            self.accepted.append(request)

    def can_ever_run(self, request: Request) -> bool:
        """Beams may come to share nothing but the full blocks of their prompt."""
        longest = self.scheduler.largest_request
        if request.beams:
            if request.num_samples > self.config.max_num_batched_tokens:
                return False
            if isinstance(self.memory, BlockManager) or getattr(self.memory, "shares", False):
                size = self.workload.block_size
                shared = request.prompt_len // size
                needed = shared + request.num_samples * (ceil(request.cached_len / size) - shared)
                if needed > self.workload.num_blocks and request.max_tokens > 1:
                    return False
            else:
                longest = self.scheduler.largest_of(request.prompt_len, request.num_samples)
        return request.final_len <= longest and request.num_samples <= self.config.max_num_seqs

    def strike(self, step: int, *, in_flight: bool) -> None:
        for request_id, during in self.workload.aborts.get(step, []):
            request = next((r for r in self.accepted if r.request_id == request_id), None)
            if request is None or during != in_flight:
                continue
            before = [s for s in request.sequences if s.state is not SequenceState.FINISHED]
            assert self.scheduler.abort(request_id) == before
            self.ended_early.update(before)
            assert all(s.state is SequenceState.FINISHED and s.seq_id == -1 for s in request.sequences)
            self.memory.audit()

    def step(self, step: int) -> None:
        running = self.scheduler.running
        plan = self.scheduler.schedule(float(step))
        assert bool(plan or plan.preempted) == self.scheduler.has_unfinished()
        for request in plan.formed:
            for beam in request.sequences:
                self.computed[beam] = self.computed[request.sequences[0]]
                self.returning.add(beam)
        self.check_preemption(plan, running)
        self.check_bypass(plan)
        self.check_plan(plan)
        self.plans.append(
            (
                [(s.request.request_id, s.sample) for s in plan.sequences],
                plan.seq_ids.tolist(),
                plan.num_scheduled.tolist(),
                plan.num_samples.tolist(),
                [(int(s), int(d)) for s, d in zip(*plan.copies, strict=True)],
            )
        )
        self.execute(plan)
        self.strike(step, in_flight=True)
        finished = self.sample(plan)
        self.scheduler.commit(plan, finished, float(step), self.parents)

    def check_preemption(self, plan: StepPlan, running: list[Sequence]) -> None:
        self.num_preempted += len(plan.preempted)
        for victim in plan.preempted:
            assert victim.state is (SequenceState.PENDING_FORK if self.is_led(victim) else SequenceState.WAITING)
            assert victim.seq_id == -1
            self.computed.pop(victim, None)
            self.returning.add(victim)
            self.num_returns[victim.request] += 1
            assert not victim.request.beams or not any(s.seq_id >= 0 for s in victim.request.sequences)
        stayed = [self.rank(s) for s in running if s not in plan.preempted]
        if plan.preempted:
            assert not plan.admitted
            first = min(plan.preempted, key=self.rank)
            if stayed:
                assert max(stayed) < self.rank(first)
            else:  # beams that found no room to fork into: they return to an empty pool
                assert first.request.beams, "the oldest is never preempted"
                assert not isinstance(self.memory, BlockManager)

    def rank(self, sequence: Sequence) -> tuple[Any, ...]:
        """The larger is preempted first. Nothing is charged while a step is scheduled, but for admissions."""
        if self.config.policy == "fair":
            return (self.scheduler._shares.counter(sequence.request.tenant), sequence.precedence)
        return (sequence.precedence,)

    def check_bypass(self, plan: StepPlan) -> None:
        for sequence in plan.admitted:
            assert sequence.state is SequenceState.RUNNING
            self.computed[sequence] = 0
        waiting = self.scheduler.waiting
        for sequence in waiting:
            assert sequence.num_bypasses <= self.config.max_bypass
            if self.config.policy == "fair":
                continue
            passes = sum(s.precedence > sequence.precedence for s in plan.admitted)
            self.passes[sequence] += passes
            self.passes_as_head[sequence] += passes * (sequence is waiting[0])
            assert self.passes_as_head[sequence] <= self.config.max_bypass
            if self.config.policy == "priority":
                continue  # more urgent ones that came later let others pass too
            assert self.passes[sequence] <= (self.num_earlier[sequence] + 1) * self.config.max_bypass
        if waiting:
            assert waiting[0].precedence == min(s.precedence for s in waiting)
            assert self.scheduler.waiting_reason in ("blocks", "seats", "budget")
        else:
            assert self.scheduler.waiting_reason is None

    def check_plan(self, plan: StepPlan) -> None:
        assert plan.num_tokens <= self.config.max_num_batched_tokens
        assert len(set(plan.sequences)) == len(plan.sequences)
        live = [s for request in self.accepted for s in request.sequences]
        running = [s for s in live if s.state is SequenceState.RUNNING]
        leaders = {s.request for s in running}
        seats = len(running) + sum(s.state is SequenceState.PENDING_FORK for s in live if s.request in leaders)
        assert seats <= self.config.max_num_seqs
        assert self.scheduler.num_running == len(running)
        assert self.scheduler.num_waiting == sum(s.state is SequenceState.WAITING for s in live)
        lengths = self.memory.lengths
        columns = zip(
            plan.sequences,
            plan.seq_ids.tolist(),
            plan.num_computed.tolist(),
            plan.num_scheduled.tolist(),
            plan.num_samples.tolist(),
            strict=True,
        )
        for place, (sequence, seq_id, computed, scheduled, samples) in enumerate(columns):
            assert sequence.seq_id == seq_id
            assert sequence.num_computed == computed == self.computed[sequence]
            assert scheduled >= 1
            held = sequence.num_tokens if place < plan.num_decodes else sequence.prefill_len
            assert lengths[seq_id & ROW_MASK] == held >= computed + scheduled
            pending = sum(s.state is SequenceState.PENDING_FORK for s in sequence.request.sequences)
            complete = computed + scheduled == sequence.num_tokens
            assert samples == (1 + pending if complete else 0)
            if place < plan.num_decodes:
                assert scheduled == samples == 1
        if len(running) <= self.config.max_num_batched_tokens and running:
            oldest = min(running, key=lambda s: s.precedence)
            assert any(s is oldest or (s.request is oldest.request and s.request.beams) for s in plan.sequences)
        decodes = plan.sequences[: plan.num_decodes]
        for sequence in decodes:
            turns = ceil(self.config.max_num_seqs / self.config.max_num_batched_tokens) + 1
            if any(request.beams for request in self.accepted):
                turns *= 2  # a step that would have to part beams is not filled
            assert plan.step - self.last_turn[sequence] <= turns or sequence in self.returning
            self.last_turn[sequence] = plan.step
            self.returning.discard(sequence)
            if sequence.request.beams:
                assert all(beam in decodes for beam in sequence.request.sequences)

    def execute(self, plan: StepPlan) -> None:
        """Carry out copies, write this step's tokens, and see that every query can read its whole context."""
        size = self.workload.block_size
        pool = self.slots.reshape(-1, size)
        for source, destination in zip(*plan.copies, strict=True):
            pool[destination] = pool[source]
        contexts = []
        for sequence, scheduled in zip(plan.sequences, plan.num_scheduled.tolist(), strict=True):
            done = self.computed[sequence]
            positions = np.arange(done + scheduled)
            slots = self.memory.table(sequence.seq_id)[positions // size] * size + positions % size
            names = self.names(sequence, positions)
            self.slots[slots[done:]] = names[done:]
            contexts.append((slots, names))
            self.computed[sequence] = done + scheduled
            self.num_tokens_run += scheduled
        for slots, names in contexts:
            assert np.array_equal(self.slots[slots], names)

    def is_led(self, sequence: Sequence) -> bool:
        return sequence.request.beams and sequence.sample > 0

    def names(self, sequence: Sequence, positions: np.ndarray) -> np.ndarray:
        request = self.accepted.index(sequence.request)
        if sequence.request.beams:
            prompt = request * 100_000 + np.arange(sequence.request.prompt_len)
            return np.concatenate([prompt, np.array(self.paths.get(sequence, []), np.int64)])[positions]
        sample = np.where(positions < sequence.request.prompt_len, 0, sequence.sample + 1)
        return (request * 100 + sample) * 1000 + positions

    def sample(self, plan: StepPlan) -> set[Sequence]:
        finished = set()
        self.expected = {}
        self.parents: dict[Request, list[int]] = {}
        for sequence, samples in zip(plan.sequences, plan.num_samples.tolist(), strict=True):
            if not samples or sequence.state is not SequenceState.RUNNING:
                continue
            forks = [s for s in sequence.request.sequences if s.state is SequenceState.PENDING_FORK]
            for member in [sequence, *forks]:
                self.last_turn[member] = plan.step
                self.expected[member] = sequence.num_tokens + 1
                outputs = sequence.num_tokens + 1 - sequence.request.prompt_len
                if outputs == self.workload.num_outputs[member.request.request_id, member.sample]:
                    finished.add(member)
                else:
                    self.computed[member] = self.computed[sequence]
            if sequence.request.beams and sequence not in finished:
                self.continue_beams(sequence.request)
        return finished

    def continue_beams(self, request: Request) -> None:
        if request in self.parents:
            return
        width = request.num_samples
        known = width if self.paths.get(request.sequences[0]) else 1
        choices = self.rng.sample(range(known), self.rng.choice([known, known, self.rng.randint(1, known)]))
        parents = [*choices, *self.rng.choices(choices, k=width - len(choices))]
        if self.rng.random() < 0.5:
            parents.sort()
        self.parents[request] = parents
        paths = [list(self.paths.get(request.sequences[parent], [])) for parent in parents]
        for beam, path in zip(request.sequences, paths, strict=True):
            self.num_named += 1
            self.paths[beam] = [*path, -2 - self.num_named]

    def check_between_steps(self) -> None:
        for sequence, num_tokens in self.expected.items():
            assert sequence.num_tokens == num_tokens
        for request in self.accepted:
            for sequence in request.sequences:
                if sequence.state is SequenceState.RUNNING:
                    assert sequence.num_computed == self.computed[sequence] < sequence.num_tokens
                else:
                    assert sequence.seq_id == -1
                    if sequence.state is not SequenceState.FINISHED:
                        assert sequence.num_computed == 0

    def check_end(self) -> None:
        self.memory.audit()
        assert self.memory.num_free_blocks == self.memory.num_blocks
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        useful = 0
        for request in self.accepted:
            useful += request.prompt_len
            for sequence in request.sequences:
                assert sequence.state is SequenceState.FINISHED
                outputs = self.workload.num_outputs[request.request_id, sequence.sample]
                useful += outputs - 1
                if sequence not in self.ended_early:
                    assert sequence.num_tokens == request.prompt_len + outputs
        if not self.ended_early:
            assert self.num_tokens_run == useful + self.scheduler.num_recomputed_tokens
            assert self.scheduler.num_preemptions >= self.num_preempted


@pytest.fixture(scope="session", params=ALLOCATORS)
def allocator(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def make_memory() -> Callable[..., KVMemory]:
    """`(allocator, config, *, num_blocks, block_size)`"""
    return memory_for


@pytest.fixture(scope="session")
def make_workload() -> Callable[..., Workload]:
    """`(random.Random, *, aborts=False)`: a small random workload, most of them short of memory."""
    return draw_workload


@pytest.fixture(scope="session")
def make_beam_workload() -> Callable[..., Workload]:
    """The same, with beams among the requests."""
    return draw_beam_workload


@pytest.fixture(scope="session")
def drive() -> Callable[[Workload, str], Driver]:
    """Run a workload under an allocator to its end, checking every step."""
    return lambda workload, allocator: Driver(workload, allocator).run()
