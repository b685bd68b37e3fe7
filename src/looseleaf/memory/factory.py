"""One name per allocator, so that any run can be made under any of them."""

from __future__ import annotations

from looseleaf.errors import ConfigurationError
from looseleaf.memory.contiguous import RESERVE_MAX, RESERVE_ORACLE, RESERVE_POW2, ContiguousManager
from looseleaf.memory.events import EventStream
from looseleaf.memory.interface import KVMemory
from looseleaf.memory.manager import DEFAULT_PINNED_SHARE, BlockManager
from looseleaf.memory.sizes import checked_setting

_RESERVATIONS = {reservation.name: reservation for reservation in (RESERVE_MAX, RESERVE_POW2, RESERVE_ORACLE)}

ALLOCATORS = (BlockManager.allocator, *_RESERVATIONS)


def make_manager(
    allocator: str,
    num_blocks: int,
    block_size: int,
    max_num_seqs: int,
    max_blocks_per_seq: int | None = None,
    *,
    max_model_len: int | None = None,
    max_pinned_share: float = DEFAULT_PINNED_SHARE,
    events: EventStream | None = None,
) -> KVMemory:
    """The memory manager called `allocator`, one of `ALLOCATORS`; otherwise `ConfigurationError`.

    `max_model_len` tokens (default, and most: what a table row addresses) is what `contiguous-max` reserves for
    everyone; paged memory only checks it. `max_pinned_share` is for paged memory, which alone has a prefix cache.
    """
    check_allocator(allocator)
    if allocator == BlockManager.allocator:
        paged = BlockManager(
            num_blocks, block_size, max_num_seqs, max_blocks_per_seq, max_pinned_share=max_pinned_share, events=events
        )
        if max_model_len is not None:
            checked_setting("max_model_len", max_model_len, maximum=paged.max_tokens_per_seq)
        return paged
    return ContiguousManager(
        num_blocks,
        block_size,
        max_num_seqs,
        max_blocks_per_seq,
        reservation=_RESERVATIONS[allocator],
        max_model_len=max_model_len,
        events=events,
    )


def check_allocator(allocator: str) -> None:
    """Raise `ConfigurationError` for a name that `make_manager` does not know."""
    if allocator not in ALLOCATORS:
        raise ConfigurationError(
            f"There is no allocator {allocator!r}.", hint=f"Choose one of {', '.join(ALLOCATORS)}."
        )
