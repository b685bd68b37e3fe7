"""The waiting queue by itself: order, how often its head is passed, how far one looks behind it."""

from __future__ import annotations

import random

from looseleaf.scheduler import Request, Sequence
from looseleaf.scheduler.queue import LOOKAHEAD, WaitingQueue


def sequences(count: int) -> list[Sequence]:
    made = [Request(str(number), 1, 1).sequences[0] for number in range(count)]
    for number, sequence in enumerate(made):
        sequence.precedence = (number, 0)
    return made


def queue_of(waiting: list[Sequence], *, max_bypass: int) -> WaitingQueue:
    queue = WaitingQueue(max_bypass)
    for sequence in random.Random(3).sample(waiting, len(waiting)):
        queue.add(sequence)
    return queue


def test_it_is_in_order_of_precedence_whatever_the_order_of_return():
    waiting = sequences(20)
    queue = queue_of(waiting, max_bypass=9)
    assert list(queue) == waiting
    queue.remove(waiting[7])
    queue.take(waiting[0])
    queue.take(waiting[12])
    assert list(queue) == [s for number, s in enumerate(waiting) if number not in (0, 7, 12)]
    assert len(queue) == 17
    queue.add(waiting[7])
    assert list(queue)[6] is waiting[7]


def test_the_head_is_always_a_candidate_and_others_until_it_was_passed_often_enough():
    waiting = sequences(6)
    queue = queue_of(waiting, max_bypass=2)
    for other in (waiting[3], waiting[1]):
        assert queue.candidate(list(queue).index(other)) is other
        queue.take(other)
    assert [queue.candidate(position) for position in range(5)] == [waiting[0], None, None, None, None]
    queue.take(waiting[0])
    assert queue.candidate(1) is waiting[4], "the new head has not been passed"


def test_neither_taking_the_head_nor_removing_anyone_counts_as_passing():
    waiting = sequences(5)
    queue = queue_of(waiting, max_bypass=1)
    queue.take(waiting[0])
    queue.remove(waiting[2])
    queue.remove(waiting[1])
    assert [s.num_bypasses for s in waiting] == [0] * 5


def test_a_preempted_head_returns_with_its_count():
    waiting = sequences(4)
    queue = queue_of(waiting, max_bypass=1)
    queue.take(waiting[1])
    queue.take(waiting[0])
    queue.add(waiting[0])
    assert queue.candidate(0) is waiting[0]
    assert queue.candidate(1) is None


def test_nobody_is_looked_for_beyond_the_lookahead():
    waiting = sequences(LOOKAHEAD + 2)
    queue = queue_of(waiting, max_bypass=1)
    assert queue.candidate(LOOKAHEAD) is waiting[LOOKAHEAD]
    assert queue.candidate(LOOKAHEAD + 1) is None


def test_an_empty_queue_has_no_candidate():
    assert WaitingQueue(1).candidate(0) is None
