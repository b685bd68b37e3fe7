"""How many files the process may have open: each connection is one, and the usual limit is 1,024."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

_OTHERS = 128
"""Files beside the connections: libraries, the engine's sockets, what is being opened for a moment."""


def allow_connections(wanted: int) -> int:
    """Raise this process's limit so that it can have `wanted` connections; how many it can have in the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHERS
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    possible = max(1, needed - _OTHERS)
    if possible < wanted:
        logger.warning(
            "At most %d connections at once, not %d: the system lets this process open %d files.",
            possible,
            wanted,
            hard,
        )
    return possible
