"""What each tenant uses now, against its limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from looseleaf.server.identity import Tenant

_FULL_AFTER_SECONDS = 60.0


@dataclass(slots=True)
class Usage:
    requests: int = 0
    """In progress."""
    balance: float = 0.0
    """Tokens that may be used; below zero: that many were used ahead, and must be waited for."""
    counted_at: float | None = None


@dataclass(frozen=True, slots=True)
class OverQuota:
    message: str
    retry_after: int
    """Seconds."""


class Quotas:
    """Concurrent requests, and tokens by a bucket that fills within a minute.

    Tokens are charged when they are known: a request is let in while the tenant is not overdrawn.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._usage: dict[str, Usage] = {}

    def usage(self, tenant: str) -> Usage:
        return self._usage.setdefault(tenant, Usage())

    def enter(self, tenant: Tenant) -> OverQuota | None:
        """Count a request that begins, unless the tenant may have none now. `leave` must follow."""
        usage = self.usage(tenant.name)
        most = tenant.max_concurrent_requests
        if most is not None and usage.requests >= most:
            return OverQuota(f"This key's tenant has {usage.requests} requests in progress and may have {most}.", 1)
        rate = tenant.tokens_per_minute
        if rate is not None:
            self._refill(usage, rate)
            if usage.balance <= 0:
                wait = max(1, math.ceil((1 - usage.balance) * _FULL_AFTER_SECONDS / rate))
                return OverQuota(f"This key's tenant has used its {rate} tokens per minute.", wait)
        usage.requests += 1
        return None

    def leave(self, tenant: Tenant) -> None:
        self.usage(tenant.name).requests -= 1

    def charge(self, tenant: str, tokens: int) -> None:
        self.usage(tenant).balance -= tokens

    def _refill(self, usage: Usage, rate: int) -> None:
        now = self._clock()
        if usage.counted_at is None:
            usage.balance = float(rate)  # whatever was used before there was a limit
        else:
            earned = (now - usage.counted_at) * rate / _FULL_AFTER_SECONDS
            usage.balance = min(float(rate), usage.balance + earned)
        usage.counted_at = now
