"""Beams advance in lockstep, continue from one another, and leave and enter memory together."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.errors import RequestTooLarge
from looseleaf.memory import BlockManager
from looseleaf.scheduler import InvalidCommit, Request, Scheduler, SchedulerConfig, SequenceState

NUM_WORKLOADS = {"paged": 120, "naive": 25, "naive-unshared": 25}


@pytest.mark.parametrize("aborts", [False, True], ids=["undisturbed", "aborts"])
def test_every_step_holds_and_everything_ends(allocator, make_beam_workload, drive, aborts):
    groups = preempted = 0
    for seed in range(NUM_WORKLOADS.get(allocator, 25)):
        run = drive(make_beam_workload(random.Random(f"{allocator} {aborts} {seed}"), aborts=aborts), allocator)
        groups += sum(request.beams for request in run.accepted)
        preempted += sum(request.beams for request in run.num_returns)
    assert groups > 10
    assert preempted > 3 or allocator != "paged"


@settings(max_examples=60, deadline=None)
@given(rng=st.randoms(use_true_random=False), aborts=st.booleans())
def test_every_step_holds_on_adversarial_workloads(make_beam_workload, drive, rng, aborts):
    drive(make_beam_workload(rng, aborts=aborts), "paged")


class Game:
    """A scheduler over paged memory, and steps in which everything scheduled is computed."""

    def __init__(self, *, num_blocks: int = 64, block_size: int = 4, **settings: float) -> None:
        config = SchedulerConfig(**{"max_num_seqs": 8, "max_model_len": 64, "watermark": 0.0} | settings)
        self.memory = BlockManager(num_blocks, block_size, config.max_num_seqs, 64 // block_size)
        self.scheduler = Scheduler(config, self.memory)

    def step(self, parents: dict[Request, list[int]] | None = None, finished: tuple = ()):
        plan = self.scheduler.schedule(0.0)
        self.scheduler.commit(plan, finished, 0.0, parents or {})
        self.memory.audit()
        return plan

    @property
    def held(self) -> int:
        return self.memory.num_blocks - self.memory.num_free_blocks

    def tables(self, request: Request) -> list[list[int]]:
        return [self.memory.table(beam.seq_id).tolist() for beam in request.sequences]


def begun(game: Game, width: int, prompt_len: int = 10, max_tokens: int = 20) -> Request:
    request = Request("beams", prompt_len, max_tokens, width, beams=True)
    game.scheduler.add(request)
    game.step({request: [0] * width})
    return request


def test_beams_share_the_prompt_and_the_last_writer_keeps_the_original():
    game = Game()
    request = begun(game, 4)
    assert game.held == 3  # 10 tokens in blocks of 4, once for all
    plan = game.step({request: [0, 1, 2, 3]})
    assert plan.num_decodes == 4
    assert len(plan.copies.source) == 3
    assert game.held == 6
    assert [table[:2] for table in game.tables(request)] == [game.tables(request)[0][:2]] * 4


def test_a_beam_that_keeps_its_parent_keeps_its_blocks_and_a_dropped_one_gives_them_back_at_once():
    game = Game()
    request = begun(game, 3)
    game.step({request: [0, 1, 2]})
    before, ids = game.tables(request), [beam.seq_id for beam in request.sequences]
    game.step({request: [1, 1, 0]})  # beam 2 is dropped, 0 moves to its place, 1 stays and is forked
    assert game.tables(request) == [before[1], before[1], before[0]]
    assert request.sequences[1].seq_id == ids[1]
    assert request.sequences[2].seq_id == ids[0]
    assert game.held == 4  # two full blocks for all, one of each of the two that are left


def test_permuted_beams_copy_nothing():
    game = Game()
    request = begun(game, 4)
    game.step({request: [0, 1, 2, 3]})
    before = game.tables(request)
    plan = game.step({request: [2, 0, 3, 1]})
    assert game.tables(request) == [before[2], before[0], before[3], before[1]]
    assert not len(plan.copies.source)
    assert not len(game.step({request: [0, 1, 2, 3]}).copies.source)


@pytest.mark.parametrize("budget", [3, 5, 64])
def test_beams_never_part_whatever_the_budget(budget):
    game = Game(max_num_batched_tokens=budget)
    requests = [Request(f"r{number}", 2, 12, width, beams=width > 1) for number, width in enumerate([3, 1, 2, 2])]
    for request in requests:
        game.scheduler.add(request)
    decoded = dict.fromkeys(requests, 0)
    while game.scheduler.has_unfinished():
        plan = game.scheduler.schedule(0.0)
        sampled = {s.request for s, samples in zip(plan.sequences, plan.num_samples, strict=True) if samples}
        parents = {request: list(range(request.num_samples)) for request in sampled if request.beams}
        parents |= {request: [0] * request.num_samples for request in parents if not request.lineage}
        finished = [s for r in sampled for s in r.sequences if s.num_tokens + 1 >= r.final_len]
        decodes = plan.sequences[: plan.num_decodes]
        for request in {sequence.request for sequence in decodes}:
            assert all(sequence in decodes for sequence in request.sequences)
            decoded[request] += 1
        game.scheduler.commit(plan, finished, 0.0, parents)
    assert set(decoded.values()) == {11}


def test_a_preempted_group_leaves_whole_and_computes_what_is_common_once():
    game = Game(num_blocks=14)
    older = Request("older", 8, 40)
    game.scheduler.add(older)
    game.step()
    request = begun(game, 3, prompt_len=9, max_tokens=12)
    game.step({request: [1, 1, 1]})
    while request.sequences[0].state is SequenceState.RUNNING:
        plan = game.step({request: [0, 1, 2]} if game.scheduler.num_running > 1 else {})
    assert [beam.request.request_id for beam in plan.preempted] == ["beams"] * 3
    assert game.scheduler.num_running == 1
    assert request.num_common_steps == 1
    game.scheduler.abort("older")
    game.step()  # the prompt and the tokens that all have
    assert game.held == 3
    plan = game.step()
    own = request.sequences[0].num_tokens - 1 - request.common_len
    assert plan.formed == [request]
    assert plan.num_scheduled.tolist() == [own] * 3
    plan = game.step({request: [0, 1, 2]})
    assert plan.num_decodes == 3


def test_num_common_steps_follows_the_ancestors_of_all_beams():
    request = Request("r", 4, 10, 3, beams=True)
    assert request.num_common_steps == 0
    request.lineage += [(0, 0, 0)]
    assert request.num_common_steps == 0
    request.lineage += [(1, 1, 1)]
    assert request.num_common_steps == 1
    request.lineage += [(0, 1, 2)] * 5
    assert request.num_common_steps == 1
    request.lineage += [(0, 0, 2)]
    assert request.num_common_steps == 1
    request.lineage += [(1, 1, 0)]
    assert request.num_common_steps == 7
    assert Request("one", 4, 10, 1, beams=True, lineage=[(0,), (0,)]).num_common_steps == 2


def test_what_beams_could_come_to_need_must_fit_the_empty_pool():
    game = Game(num_blocks=12, max_num_batched_tokens=4, max_num_seqs=6)
    game.scheduler.check(Request("fits", 9, 12, 3, beams=True))  # 2 shared blocks and 3 · 3 of their own
    with pytest.raises(RequestTooLarge, match="of 3 such beams is 21"):
        game.scheduler.check(Request("long", 9, 13, 3, beams=True))
    game.scheduler.check(Request("samples", 9, 13, 3))
    assert game.scheduler.largest_of(9, 3) == 21
    game.scheduler.check(Request("one token", 45, 1, 3, beams=True))  # never forks
    with pytest.raises(RequestTooLarge, match="5 beams, which advance together, and a step has 4 tokens"):
        game.scheduler.check(Request("wide", 3, 2, 5, beams=True))


@pytest.mark.parametrize("given", [None, [], [0], [0, 2], [0, 1, 1], [0, -1]])
def test_a_commit_must_say_what_each_beam_continues(given):
    game = Game()
    request = begun(game, 2)
    plan = game.scheduler.schedule(0.0)
    parents = {} if given is None else {request: given}
    with pytest.raises(InvalidCommit):
        game.scheduler.commit(plan, (), 0.0, parents)
    game.scheduler.commit(plan, (), 0.0, {request: [1, 0]})
    game.memory.audit()


def test_beams_end_together():
    game = Game()
    request = begun(game, 2)
    plan = game.scheduler.schedule(0.0)
    with pytest.raises(InvalidCommit, match="1 of the 2 beams"):
        game.scheduler.commit(plan, request.sequences[:1], 0.0, {request: [0, 1]})
    game.scheduler.commit(plan, request.sequences, 0.0)
    assert game.held == 0


@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("in_flight", [False, True])
def test_an_abort_frees_everything_at_any_time(steps, in_flight):
    game = Game()
    request = Request("beams", 6, 9, 3, beams=True)
    game.scheduler.add(request)
    for step in range(steps):
        game.step({request: [0, 0, 0] if step == 0 else [0, 2, 2]})
    plan = game.scheduler.schedule(0.0) if in_flight else None
    assert len(game.scheduler.abort("beams")) == 3
    if plan:
        game.scheduler.commit(plan, (), 0.0)
    game.memory.audit()
    assert game.held == 0
    assert not game.scheduler.has_unfinished()
    assert np.all(game.memory.lengths == 0)
