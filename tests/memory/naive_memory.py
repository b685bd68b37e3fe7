"""What a KV memory must do, in plain dicts and lists, without any idea of how the real one does it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import ClassVar

import numpy as np

from looseleaf.memory import (
    ROW_MASK,
    DuplicateSequence,
    InvalidSize,
    KVMemory,
    OutOfBlocks,
    OutOfRows,
    RegionFull,
    SlotUsage,
    UncomputedTokens,
    UnknownSequence,
)


@dataclass
class NaiveSequence:
    tokens: list[int]
    """Each token is a number that no other token has, except in a fork."""
    filled: int
    blocks: list[int]
    """Paged: labels of the model's own, one per block. Contiguous: the region's physical blocks."""
    final: int = 0
    """Contiguous: the length that was announced."""


@dataclass
class NaiveMemory:
    """Raises what the real memory must raise, in the same order of checks, before it changes anything."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_blocks_per_seq: int
    max_model_len: int
    grows: ClassVar[bool] = True
    """Do sequences take blocks after they were admitted?"""
    sequences: dict[int, NaiveSequence] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    @property
    def free(self) -> int:
        return self.num_blocks - len({block for seq in self.sequences.values() for block in seq.blocks})

    @property
    def max_tokens(self) -> int:
        return self.max_blocks_per_seq * self.block_size

    def size(self, value: object, low: int = 1, high: int = 2**31 - 1) -> int:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
            raise InvalidSize(f"{value!r}")
        return int(value)

    def known(self, seqs: list[object]) -> list[NaiveSequence]:
        for seq in seqs:
            if isinstance(seq, float | str) or seq not in self.sequences:
                raise UnknownSequence(f"{seq!r}")
        if len(set(seqs)) < len(seqs):
            raise DuplicateSequence("twice")
        return [self.sequences[seq] for seq in seqs]  # type: ignore[index]  # checked above

    def lengths(self, num_tokens: object, final_tokens: object) -> tuple[int, int]:
        tokens = self.size(num_tokens)
        return tokens, tokens if final_tokens is None else self.size(final_tokens, tokens)

    def admit(self, num_tokens: object, final_tokens: object, filled: object) -> NaiveSequence:
        tokens, final = self.lengths(num_tokens, final_tokens)
        done = self.size(filled, 0, tokens)
        blocks = self.take(tokens, final)
        return NaiveSequence([next(self._numbers) for _ in range(tokens)], done, blocks, final)

    def fork(self, seq: object, final_tokens: object) -> NaiveSequence:
        (parent,) = self.known([seq])
        length = len(parent.tokens)
        final = self.size(self.inherited_final(parent) if final_tokens is None else final_tokens, length)
        if parent.filled < length:
            raise UncomputedTokens("wait")
        return NaiveSequence(list(parent.tokens), length, self.take_fork(parent, final), final)

    def append(self, seqs: list[object], num_tokens: object) -> None:
        tokens = self.size(num_tokens)
        grown = self.known(seqs)
        if any(len(seq.tokens) + tokens > self.max_tokens for seq in grown):
            raise InvalidSize("row")
        for seq, blocks in zip(grown, self.grow(grown, tokens), strict=True):
            seq.blocks = blocks
            seq.tokens += [next(self._numbers) for _ in range(tokens)]

    def fill(self, seqs: list[object], num_tokens: list[int]) -> None:
        filled = self.known(seqs)
        for seq, tokens in zip(filled, num_tokens, strict=True):
            self.size(tokens, 0, len(seq.tokens) - seq.filled)
        for seq, tokens in zip(filled, num_tokens, strict=True):
            seq.filled += tokens

    def truncate(self, seq: object, num_tokens: object) -> None:
        tokens = self.size(num_tokens)
        (shorter,) = self.known([seq])
        self.size(tokens, high=len(shorter.tokens))
        del shorter.tokens[tokens:]
        shorter.filled = min(shorter.filled, tokens)
        self.shrink(shorter)

    def release(self, seq: object) -> None:
        self.known([seq])
        del self.sequences[seq]  # type: ignore[arg-type]  # checked above

    def usage(self) -> SlotUsage:
        """Slot by slot."""
        computed: set[tuple[int, int]] = set()
        wanted: set[tuple[int, int]] = set()
        held: set[int] = set()
        for seq in self.sequences.values():
            held.update(seq.blocks)
            for token in range(max(len(seq.tokens), seq.final)):
                slot = (seq.blocks[token // self.block_size], token % self.block_size)
                wanted.add(slot)
                if token < seq.filled:
                    computed.add(slot)
        named = sum(len(seq.blocks) for seq in self.sequences.values())
        return SlotUsage(
            total=self.num_blocks * self.block_size,
            token_states=len(computed),
            reserved=len(wanted - computed),
            internal_fragmentation=len(held) * self.block_size - len(wanted),
            free=self.free * self.block_size,
            largest_free_run=self.largest_hole() * self.block_size,
            saved_by_sharing=(named - len(held)) * self.block_size,
        )

    def require_row(self) -> None:
        if len(self.sequences) == self.max_num_seqs:
            raise OutOfRows("full")

    def take(self, tokens: int, final: int) -> list[int]:
        raise NotImplementedError

    def take_fork(self, parent: NaiveSequence, final: int) -> list[int]:
        raise NotImplementedError

    def grow(self, grown: list[NaiveSequence], tokens: int) -> list[list[int]]:
        raise NotImplementedError

    def shrink(self, shorter: NaiveSequence) -> None:
        raise NotImplementedError

    def inherited_final(self, parent: NaiveSequence) -> int:
        raise NotImplementedError

    def largest_hole(self) -> int:
        raise NotImplementedError

    def check_tables(self, memory: KVMemory) -> None:
        raise NotImplementedError

    def held_blocks(self, memory: KVMemory, seq: int) -> list[int]:
        """The physical blocks that one sequence holds."""
        raise NotImplementedError


class NaivePaged(NaiveMemory):
    """Blocks are labels; only which table entries are the same block, and how many there are, can be predicted."""

    def take(self, tokens: int, _final: int) -> list[int]:
        if tokens > self.max_tokens:
            raise InvalidSize("row")
        self.require_row()
        return self.new_blocks(-(-tokens // self.block_size))

    def take_fork(self, parent: NaiveSequence, _final: int) -> list[int]:
        self.require_row()
        return list(parent.blocks)

    def admit(self, num_tokens: object, final_tokens: object, filled: object) -> NaiveSequence:
        seq = super().admit(num_tokens, final_tokens, filled)
        seq.final = 0
        return seq

    def fork(self, seq: object, final_tokens: object) -> NaiveSequence:
        child = super().fork(seq, final_tokens)
        child.final = 0
        return child

    def inherited_final(self, parent: NaiveSequence) -> int:
        return len(parent.tokens)

    def new_blocks(self, needed: int) -> list[int]:
        if needed > self.free:
            raise OutOfBlocks(needed, self.free)
        return [next(self._numbers) for _ in range(needed)]

    def grow(self, grown: list[NaiveSequence], tokens: int) -> list[list[int]]:
        tables = {id(seq): list(seq.blocks) for seq in self.sequences.values()}
        needed = 0
        for seq in grown:  # one sequence after the other: when the last sharer's turn comes, nobody shares with it
            table = tables[id(seq)]
            has_room = len(seq.tokens) % self.block_size != 0
            if has_room and sum(table[-1] in other for other in tables.values()) > 1:
                table[-1] = next(self._numbers)
                needed += 1
            while len(table) * self.block_size < len(seq.tokens) + tokens:
                table.append(next(self._numbers))
                needed += 1
        if needed > self.free:
            raise OutOfBlocks(needed, self.free)
        return [tables[id(seq)] for seq in grown]

    def shrink(self, shorter: NaiveSequence) -> None:
        del shorter.blocks[-(-len(shorter.tokens) // self.block_size) :]

    def largest_hole(self) -> int:
        return self.free

    def check_tables(self, memory: KVMemory) -> None:
        physical: dict[int, int] = {}
        for name, seq in self.sequences.items():
            table = memory.table(name).tolist()
            assert len(table) == len(seq.blocks)
            for label, block in zip(seq.blocks, table, strict=True):
                assert physical.setdefault(label, block) == block
        assert len(set(physical.values())) == len(physical)

    def held_blocks(self, memory: KVMemory, seq: int) -> list[int]:
        return memory.table(seq).tolist()


class NaiveContiguous(NaiveMemory):
    """A list that says of each block whether it is free, searched from the start for every region."""

    grows = False

    def reserved_tokens(self, tokens: int, final: int) -> int:
        raise NotImplementedError

    def place(self, needed: int) -> int | None:
        """Lowest start of a hole of `needed` blocks under the policy."""
        raise NotImplementedError

    def region_size(self, tokens: int, final: int) -> int:
        return -(-self.reserved_tokens(tokens, final) // self.block_size)

    def is_free(self) -> list[bool]:
        held = {block for seq in self.sequences.values() for block in seq.blocks}
        return [block not in held for block in range(self.num_blocks)]

    def take(self, tokens: int, final: int, region: int | None = None) -> list[int]:
        if final > self.max_tokens:
            raise InvalidSize("row")
        self.require_row()
        needed = region or self.region_size(tokens, final)
        start = self.place(needed)
        if start is None:
            raise OutOfBlocks(needed, self.free)
        return list(range(start, start + needed))

    def take_fork(self, parent: NaiveSequence, final: int) -> list[int]:
        return self.take(len(parent.tokens), final, len(parent.blocks) if final == parent.final else None)

    def inherited_final(self, parent: NaiveSequence) -> int:
        return parent.final

    def grow(self, grown: list[NaiveSequence], tokens: int) -> list[list[int]]:
        for seq in grown:
            room = len(seq.blocks)
            if len(seq.tokens) + tokens > room * self.block_size:
                raise RegionFull(-(-(len(seq.tokens) + tokens) // self.block_size) - room, room)
        return [seq.blocks for seq in grown]

    def shrink(self, shorter: NaiveSequence) -> None:
        """The region stays."""

    def check_tables(self, memory: KVMemory) -> None:
        for name, seq in self.sequences.items():
            assert memory.table(name).tolist() == seq.blocks[: self.max_blocks_per_seq]

    def held_blocks(self, _memory: KVMemory, seq: int) -> list[int]:
        return self.sequences[seq].blocks


class NaiveFirstFit(NaiveContiguous):
    def place(self, needed: int) -> int | None:
        free = self.is_free()
        for start in range(self.num_blocks - needed + 1):
            if all(free[start : start + needed]):
                return start
        return None

    def largest_hole(self) -> int:
        held = [-1, *(block for block, free in enumerate(self.is_free()) if not free), self.num_blocks]
        return max(right - left - 1 for left, right in pairwise(held))


class NaiveMax(NaiveFirstFit):
    def reserved_tokens(self, _tokens: int, final: int) -> int:
        wanted = max(self.max_model_len, final)
        pool = self.num_blocks * self.block_size
        return wanted if wanted <= pool else max(final, pool)


class NaiveOracle(NaiveFirstFit):
    def reserved_tokens(self, _tokens: int, final: int) -> int:
        return final


def power_at_least(number: int) -> int:
    power = 1
    while power < number:
        power *= 2
    return power


class NaivePow2(NaiveContiguous):
    def reserved_tokens(self, tokens: int, final: int) -> int:
        output = power_at_least(final - tokens) if final > tokens else 0
        return max(min(tokens + output, self.max_model_len), final)

    def region_size(self, tokens: int, final: int) -> int:
        largest_root = power_at_least(self.num_blocks + 1) // 2
        size = power_at_least(super().region_size(tokens, final))
        if size <= largest_root:
            return size
        return max(largest_root, power_at_least(-(-final // self.block_size)))

    def pieces(self) -> list[tuple[int, int]]:
        """(size, start) of the maximal aligned free blocks of every root: buddies always merge."""
        free = self.is_free()

        def split(start: int, size: int) -> list[tuple[int, int]]:
            if all(free[start : start + size]):
                return [(size, start)]
            if size == 1:
                return []
            return split(start, size // 2) + split(start + size // 2, size // 2)

        found: list[tuple[int, int]] = []
        start = 0
        while start < self.num_blocks:
            root = power_at_least(self.num_blocks - start + 1) // 2
            found += split(start, root)
            start += root
        return found

    def place(self, needed: int) -> int | None:
        fitting = [piece for piece in self.pieces() if piece[0] >= needed]
        return min(fitting)[1] if fitting else None

    def largest_hole(self) -> int:
        return max((size for size, _ in self.pieces()), default=0)


NAIVE = {
    "paged": NaivePaged,
    "contiguous-max": NaiveMax,
    "contiguous-pow2": NaivePow2,
    "contiguous-oracle": NaiveOracle,
}


def row_of(seq: int) -> int:
    return seq & ROW_MASK
