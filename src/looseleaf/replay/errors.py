"""What can go wrong in a replay."""

from __future__ import annotations

from looseleaf.errors import LooseleafError


class ReplayError(LooseleafError):
    """Root of the lab's own errors."""


class ReplayStuck(ReplayError):
    """Requests wait and nothing will ever let them run: a fault of the scheduler or the memory, never of a trace."""


class InvalidTrace(ReplayError):
    """A trace cannot be read: no file, an unknown format, lines that make no sense, or no request at all."""


class InvalidSpec(ReplayError):
    """The description of a generated trace makes no sense."""
