from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from soak import soak
from trial import Geometry, Trial, admit, append, fill, fork, release, truncate

from looseleaf.memory import AuditError


class Drawn:
    """Choices made, and shrunk, by Hypothesis."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def integer(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))


class MemoryMachine(RuleBasedStateMachine):
    """Every operation, valid or not, on the real memory and the naive one; see `trial`."""

    allocator: str
    trial: Trial

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.trial = Trial(self.allocator, Geometry.choose(Drawn(data)))

    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        admit(self.trial, Drawn(data))

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        append(self.trial, Drawn(data))

    @rule(data=st.data())
    def fill(self, data: st.DataObject) -> None:
        fill(self.trial, Drawn(data))

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        fork(self.trial, Drawn(data))

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        truncate(self.trial, Drawn(data))

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        release(self.trial, Drawn(data))

    @invariant()
    def both_agree(self) -> None:
        if hasattr(self, "trial"):
            self.trial.check()

    def teardown(self) -> None:
        if hasattr(self, "trial"):
            self.trial.drain()


def test_memory_agrees_with_the_naive_model(allocator: str) -> None:
    machine: Any = type("Machine", (MemoryMachine,), {"allocator": allocator})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_soak() -> None:
    """20,000 operations; each one done, and each error provoked, many times."""
    result = soak(20_000, seed=20)
    assert result.operations.total() == 20_000
    assert set(result.operations) == {"admit", "append", "fill", "fork", "truncate", "release"}
    errors = ("InvalidSize", "UnknownSequence", "DuplicateSequence", "UncomputedTokens")
    for name in (*errors, "OutOfRows", "OutOfBlocks", "RegionFull"):
        assert result.failures[name] > 100


def test_the_soak_notices_a_block_that_is_not_copied_on_write(monkeypatch: pytest.MonkeyPatch) -> None:
    def copy_nothing(_pool: object, copied: Any, _blocks: Any) -> Any:
        return copied[:0]

    monkeypatch.setattr("looseleaf.memory.growth._without_keepers", copy_nothing)
    with pytest.raises(AuditError) as failure:
        soak(5_000, seed=1)
    assert "of seed 1: paged" in failure.value.__notes__[0]
