"""How many threads compute."""

from __future__ import annotations

import logging

import pytest
import torch

from looseleaf.errors import ConfigurationError
from looseleaf.kernels import threads
from looseleaf.kernels.machine import torch_threads
from looseleaf.kernels.processors import Cores


@pytest.fixture
def three_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cores with two logical processors each, and a quota of four; torch's threads are put back."""
    monkeypatch.setattr(threads, "read_cores", lambda: Cores(machine=6, logical=6, physical=3, quota=4.0))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.usefixtures("three_of_four")
def test_the_default_is_a_thread_per_core_and_the_users_word_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch_threads(1):
        threads.use_threads(None)
        assert torch.get_num_threads() == 3
        threads.use_threads(2)
        assert torch.get_num_threads() == 2
        with pytest.raises(ConfigurationError, match="5 threads"):
            threads.use_threads(5)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        threads.use_threads(None)
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("three_of_four")
def test_too_many_threads_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    threads.warn_if_oversubscribed.cache_clear()
    with torch_threads(5), caplog.at_level(logging.WARNING, logger="looseleaf"):
        threads.warn_if_oversubscribed()
        threads.warn_if_oversubscribed()
    assert [record.getMessage() for record in caplog.records] == [
        "torch computes with 5 threads but only 4 can run at once here: this is very slow. "
        "Use --threads 3, OMP_NUM_THREADS=3 or torch.set_num_threads(3)."
    ]
    threads.warn_if_oversubscribed.cache_clear()
    caplog.clear()
    with torch_threads(4):
        threads.warn_if_oversubscribed()
    threads.warn_if_oversubscribed.cache_clear()
    assert caplog.records == []
