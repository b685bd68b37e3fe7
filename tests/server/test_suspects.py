"""Requests that end the engine are found, whatever runs beside them, and nobody else is given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.server.in_flight import InFlight
from looseleaf.server.interface import EngineCrashed, GenerateRequest, RequestEnd, SampleUpdate
from looseleaf.server.supervisor import Suspects


class Simulated:
    """An engine process and its clients, in steps of one token for each request that it has."""

    def __init__(
        self, lengths: list[int], deadly_at: dict[int, int], whole: set[int], seats: int, max_crashes: int = 3
    ) -> None:
        """`deadly_at`: by request, the token that ends the process. `seats`: requests in one step."""
        self.suspects = Suspects(max_crashes)
        self.lengths = dict(enumerate(lengths))
        self.deadly_at = deadly_at
        self.seats = seats
        self.flights = {}
        for number in self.lengths:
            params = {"beam_width": 2} if number in whole else {}
            request = GenerateRequest(request_id=str(number), prompt_token_ids=[1], params=params)
            self.flights[number] = InFlight(request, str(number))
        self.tokens: dict[int, int] = {}
        self.num_crashes = 0

    def send(self, flights: list[InFlight]) -> None:
        for flight in flights:
            known = flight.command().known
            self.tokens[int(flight.name)] = len(known[0]) if known else 0

    def run(self, kills: set[int]) -> None:
        """`kills`: steps in which the process is killed from outside."""
        self.send(self.suspects.split(self.flights.values()))
        step = 0
        while self.tokens:
            step += 1
            assert step < 5000
            batch = list(self.tokens)[: self.seats]
            deadly = any(self.deadly_at.get(number) == self.tokens[number] for number in batch)
            if deadly or step in kills:
                self.num_crashes += 1
                self.suspects.blame({self.flights[number]: self.tokens[number] for number in batch})
                self.tokens = {}
                self.send(self.suspects.split(f for f in self.flights.values() if not f.over))
                continue
            for number in batch:
                self.tokens[number] += 1
                flight = self.flights[number]
                done = self.tokens[number] == self.lengths[number]
                if not flight.whole:
                    flight.tell(SampleUpdate(str(number), 0, [1]))
                elif done:
                    flight.tell(SampleUpdate(str(number), 0, [1] * self.tokens[number], "length"))
                if done:
                    flight.tell(RequestEnd(str(number)))
                    del self.tokens[number]
            self.send(self.suspects.next())


@given(
    data=st.data(),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    seats=st.integers(1, 8),
    most=st.integers(1, 3),
)
def test_the_deadly_are_given_up_and_the_others_end(
    data: st.DataObject, lengths: list[int], seats: int, most: int
) -> None:
    numbers = st.sampled_from(range(len(lengths)))
    deadly = data.draw(st.dictionaries(numbers, st.integers(0, 11), max_size=2))
    deadly = {number: place for number, place in deadly.items() if place < lengths[number]}
    whole = data.draw(st.sets(numbers, max_size=2))
    simulated = Simulated(lengths, deadly, whole, seats, most)
    simulated.run(set())
    for number, flight in simulated.flights.items():
        assert flight.over
        if number in deadly:
            with pytest.raises(EngineCrashed):
                list(flight.take())
        else:
            events = list(flight.take())
            assert sum(len(e.token_ids) for e in events if isinstance(e, SampleUpdate)) == lengths[number]
    # Two more each at most, until one is its own; and one that shows nothing before its end begins again each time, so
    # that another's ends can set its count back.
    assert simulated.num_crashes <= (len(deadly) + bool(whole)) * (most + 2)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    seats=st.integers(1, 8),
    gaps=st.lists(st.integers(2, 20), max_size=20),
)
def test_kills_from_outside_are_nobodys_fault(lengths: list[int], seats: int, gaps: list[int]) -> None:
    """Given at least one good step between two of them."""
    simulated = Simulated(lengths, {}, set(), seats)
    simulated.run({sum(gaps[: i + 1]) for i in range(len(gaps))})
    for number, flight in simulated.flights.items():
        events = list(flight.take())
        assert sum(len(e.token_ids) for e in events if isinstance(e, SampleUpdate)) == lengths[number]


def test_who_is_there_when_somebody_kills_the_process_is_not_given_up() -> None:
    suspects = Suspects(3)
    flight = InFlight(GenerateRequest(request_id="it", prompt_token_ids=[1]), "it")
    for _ in range(11):
        suspects.blame({flight: 0}, outside=True)
        assert not flight.over
        assert suspects.split([flight]) == [flight]
    suspects.blame({flight: 0}, outside=True)  # what else could it be
    assert flight.over
    with pytest.raises(EngineCrashed):
        list(flight.take())
