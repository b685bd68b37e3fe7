"""KV-cache memory: blocks, tables, sharing and accounting. NumPy only, no tensors, no I/O, no threads.

>>> from looseleaf.memory import BlockManager
>>> memory = BlockManager(num_blocks=64, block_size=16, max_num_seqs=8)
>>> seq = memory.admit(200, request_id="a")
>>> len(memory.table(seq)), memory.usage().internal_fragmentation
(13, 8)
"""

from __future__ import annotations

from looseleaf.memory.contiguous import ContiguousManager
from looseleaf.memory.errors import (
    AuditError,
    DuplicateSequence,
    InvalidSize,
    MemoryLayerError,
    OutOfBlocks,
    OutOfRows,
    PinTooLarge,
    RegionFull,
    UncomputedTokens,
    UnknownPin,
    UnknownSequence,
)
from looseleaf.memory.events import Allocate, Copy, EventStream, Evict, Free, MemoryEvent, Register, Share
from looseleaf.memory.factory import ALLOCATORS, make_manager
from looseleaf.memory.interface import ROW_MASK, CopyPairs, KVMemory, SequenceId, SlotUsage
from looseleaf.memory.manager import BlockManager
from looseleaf.memory.prefix import Admission, Divergence, Prefix, PrefixMatch
from looseleaf.memory.prefix_cache import CacheCounts

__all__ = [
    "ALLOCATORS",
    "ROW_MASK",
    "Admission",
    "Allocate",
    "AuditError",
    "BlockManager",
    "CacheCounts",
    "ContiguousManager",
    "Copy",
    "CopyPairs",
    "Divergence",
    "DuplicateSequence",
    "EventStream",
    "Evict",
    "Free",
    "InvalidSize",
    "KVMemory",
    "MemoryEvent",
    "MemoryLayerError",
    "OutOfBlocks",
    "OutOfRows",
    "PinTooLarge",
    "Prefix",
    "PrefixMatch",
    "RegionFull",
    "Register",
    "SequenceId",
    "Share",
    "SlotUsage",
    "UncomputedTokens",
    "UnknownPin",
    "UnknownSequence",
    "make_manager",
]
