"""Tenants' limits, against a clock that the tests turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from looseleaf.server.identity import Tenant
from looseleaf.server.quotas import Quotas


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_concurrent_requests() -> None:
    quotas, tenant, other = Quotas(), Tenant(name="a", max_concurrent_requests=2), Tenant(name="b")
    assert quotas.enter(tenant) is quotas.enter(tenant) is None
    over = quotas.enter(tenant)
    assert over is not None
    assert over.retry_after == 1
    assert "2" in over.message
    assert quotas.enter(other) is None
    quotas.leave(tenant)
    assert quotas.enter(tenant) is None


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0, 100)), max_size=40), st.integers(1, 1000))
def test_tokens_per_minute(requests: list[tuple[int, float]], rate: int) -> None:
    """No more is used than the bucket has had, but for one request; who waits as told is let in."""
    clock = Clock()
    quotas, tenant = Quotas(clock), Tenant(name="a", tokens_per_minute=rate)
    used, began, largest = 0, clock.now, 0
    for tokens, pause in requests:
        over = quotas.enter(tenant)
        if over is not None:
            clock.now += over.retry_after
            assert quotas.enter(tenant) is None
        quotas.charge("a", tokens)
        quotas.leave(tenant)
        used, largest = used + tokens, max(largest, tokens)
        assert used <= rate + (clock.now - began) * rate / 60 + largest + 1e-6
        clock.now += pause


def test_a_limit_that_is_new_counts_from_now_on() -> None:
    quotas, clock = Quotas(Clock()), Clock()
    quotas.charge("a", 10**6)
    assert quotas.enter(Tenant(name="a", tokens_per_minute=60)) is None
    assert clock.now == 1000
