"""The decoding sequences: the arithmetic of their turns against a plain list of who was served when."""

from __future__ import annotations

import random
from math import ceil

import pytest

from looseleaf.scheduler import Request, Sequence
from looseleaf.scheduler.running import DecodeSet

CAPACITY = 7


def decoding(number: int, num_tokens: int, final_len: int) -> Sequence:
    sequence = Request(str(number), 1, final_len - 1).sequences[0]
    sequence.precedence, sequence.seq_id, sequence.num_tokens = (number, 0), 100 + number, num_tokens
    return sequence


@pytest.mark.parametrize("seed", range(30))
def test_turns_tokens_and_ends_are_those_of_plain_lists(seed):
    """Each step serves those that were served longest ago; one that joins counts as served last in its step."""
    rng = random.Random(seed)
    budget = rng.randint(1, CAPACITY)
    decodes = DecodeSet(CAPACITY)
    served: dict[Sequence, tuple[int, int, int]] = {}
    tokens: dict[Sequence, int] = {}
    number = 0
    for step in range(1, 120):
        turns = sorted(served, key=lambda sequence: (served[sequence], sequence.precedence))[:budget]
        all_served = len(served) <= budget
        expected = sorted(turns, key=lambda sequence: sequence.precedence) if all_served else turns
        index = decodes.pick(budget)
        sequences, seq_ids, num_tokens = decodes.at(index)
        assert sequences == expected
        assert seq_ids.tolist() == [sequence.seq_id for sequence in expected]
        assert num_tokens.tolist() == [tokens[sequence] for sequence in expected]
        decodes.mark(index, step)
        for place, sequence in enumerate(expected):
            served[sequence] = (step, 0, 0 if all_served else place)
        for leaving in rng.sample(list(served), rng.randint(0, len(served)) // 3):  # while the step is in flight
            decodes.remove(leaving)
            del served[leaving], tokens[leaving]
        last = [s for s in expected if s in served and tokens[s] + 1 >= s.request.final_len]
        assert decodes.at_last_token(step) == sorted(last, key=lambda sequence: sequence.precedence)
        decodes.advance(step)
        for sequence in expected:
            if sequence in served:
                tokens[sequence] += 1
        for sequence in last:
            decodes.remove(sequence)
            del served[sequence], tokens[sequence]
        for _ in range(rng.randint(0, CAPACITY - len(served))):
            number += 1
            joining = decoding(rng.choice([number, 10**6 - number]), 2, rng.randint(3, 20))
            decodes.add(joining, step)
            served[joining], tokens[joining] = (step, 1, 0), 2
        assert decodes.sequences == sorted(served, key=lambda sequence: sequence.precedence)
        assert len(decodes) == len(served)


@pytest.mark.parametrize("budget", range(1, CAPACITY + 1))
@pytest.mark.parametrize("count", range(1, CAPACITY + 1))
def test_each_of_n_decodes_within_n_over_budget_steps(count, budget):
    decodes = DecodeSet(CAPACITY)
    for number in range(count):
        decodes.add(decoding(number, 2, 1000), 0)
    rounds = ceil(count / budget)
    picks = []
    for step in range(1, 40):
        index = decodes.pick(budget)
        decodes.mark(index, step)
        picks.append(decodes.at(index)[0])
    for start in range(len(picks) - rounds + 1):
        assert {sequence for pick in picks[start : start + rounds] for sequence in pick} == set(decodes.sequences)
