"""Who holds which block at one moment, copied out of a running engine."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from looseleaf.engine.engine import Engine
from looseleaf.errors import InvalidRequest
from looseleaf.memory.contiguous import ContiguousManager
from looseleaf.memory.interface import KVMemory, SequenceId, SlotUsage
from looseleaf.memory.manager import BlockManager
from looseleaf.scheduler.interface import Sequence

LETTERS = string.ascii_uppercase + string.ascii_lowercase


class Letters:
    """A letter for each sequence, in the order of `register`; it keeps it for life."""

    def __init__(self) -> None:
        self._letters: dict[tuple[str, int], str] = {}

    def register(self, request_id: str, num_samples: int) -> None:
        for sample in range(num_samples):
            if len(self._letters) == len(LETTERS):
                raise InvalidRequest(f"More than {len(LETTERS)} sequences cannot be drawn: there are no letters left.")
            self._letters[request_id, sample] = LETTERS[len(self._letters)]

    def of(self, sequence: Sequence) -> str:
        return self._letters[sequence.request.request_id, sequence.sample]


@dataclass(frozen=True)
class HeldSequence:
    letter: str
    title: str
    cached_tokens: int
    """Tokens whose keys and values are in its blocks."""
    found_tokens: int
    """Of them, those that the prefix cache had when it was admitted."""
    blocks: list[int]
    """Its block table."""
    held: list[int]
    """Its blocks: those of the table, and what rounding adds to a contiguous region beyond what a table addresses."""


@dataclass(frozen=True)
class MemorySnapshot:
    step: int
    allocator: str
    num_blocks: int
    block_size: int
    usage: SlotUsage
    sequences: list[HeldSequence]
    """Those that hold blocks, by letter."""
    num_waiting: int
    cached: list[int]
    """Blocks that nobody holds, kept for whoever begins with the same tokens."""

    @cached_property
    def holders(self) -> dict[int, list[HeldSequence]]:
        """By block, who holds it; free blocks are absent."""
        holders: dict[int, list[HeldSequence]] = {}
        for sequence in self.sequences:
            for block in sequence.held:
                holders.setdefault(block, []).append(sequence)
        return holders

    def filled(self, block: int) -> int:
        """Slots of a block that hold a token of any of its holders."""
        return max((self._filled_by(block, each) for each in self.holders.get(block, ())), default=0)

    def _filled_by(self, block: int, sequence: HeldSequence) -> int:
        before = sequence.held.index(block) * self.block_size
        return min(max(sequence.cached_tokens - before, 0), self.block_size)


def take_snapshot(engine: Engine, letters: Letters, titles: Mapping[str, str], step: int) -> MemorySnapshot:
    """`titles`: what each request is called, by its id."""
    memory = engine.memory
    sequences = [
        HeldSequence(
            letter=letters.of(sequence),
            title=titles[sequence.request.request_id],
            cached_tokens=sequence.num_computed,
            found_tokens=sequence.num_cached,
            blocks=memory.table(sequence.seq_id).tolist(),
            held=_held_blocks(memory, sequence.seq_id),
        )
        for sequence in engine.scheduler.running
    ]
    return MemorySnapshot(
        step=step,
        allocator=engine.config.allocator,
        num_blocks=memory.num_blocks,
        block_size=memory.block_size,
        usage=memory.usage(),
        sequences=sorted(sequences, key=lambda each: LETTERS.index(each.letter)),
        num_waiting=engine.scheduler.num_waiting,
        cached=memory.cached_blocks().tolist() if isinstance(memory, BlockManager) else [],
    )


def _held_blocks(memory: KVMemory, seq: SequenceId) -> list[int]:
    if isinstance(memory, ContiguousManager):
        region = memory.region(seq)
        return list(range(region.start, region.end))
    table: list[int] = memory.table(seq).tolist()
    return table
