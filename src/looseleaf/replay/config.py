"""What a replay runs: a memory manager and a scheduler, by their settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from looseleaf.errors import ConfigurationError
from looseleaf.memory.factory import ALLOCATORS, check_allocator
from looseleaf.memory.sizes import checked_setting
from looseleaf.scheduler.interface import SchedulerConfig


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    num_blocks: int
    block_size: int = 16
    allocator: str = "paged"
    """One of `looseleaf.memory.ALLOCATORS`."""
    prefix_caching: bool = True
    """Requests whose prompts begin alike share blocks. Paged memory only; without effect in contiguous memory, and for
    requests of which the trace does not say what they share."""
    isolate_tenants: bool = False
    """Tenants never share blocks with one another, as on a server that salts the cache by identity."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    too_large: Literal["refuse", "fatal"] = "refuse"
    """A request that could never run: counted and left out, or the end of the replay."""
    timeline_rows: int = 512
    """At most; the longer the replay, the more time each of them stands for."""

    def __post_init__(self) -> None:
        check_allocator(self.allocator)
        checked_setting("num_blocks", self.num_blocks)
        checked_setting("block_size", self.block_size)
        if self.too_large not in ("refuse", "fatal"):
            raise ConfigurationError(f"too_large is {self.too_large!r}.", hint="Use refuse or fatal.")
        if self.timeline_rows < 2:
            raise ConfigurationError(f"timeline_rows is {self.timeline_rows} but must be at least 2.")

    @property
    def shares_prefixes(self) -> bool:
        return self.prefix_caching and self.allocator == ALLOCATORS[0]

    def describe(self) -> dict[str, Any]:
        """All settings as plain values, the scheduler's among the others."""
        settings = asdict(self)
        scheduler: dict[str, Any] = settings.pop("scheduler")
        return settings | scheduler
