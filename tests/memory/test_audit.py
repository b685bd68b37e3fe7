"""Each kind of damage, done by hand, must be found and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from looseleaf.memory import AuditError, BlockManager, ContiguousManager
from looseleaf.memory.contiguous import RESERVE_ORACLE, RESERVE_POW2
from looseleaf.memory.regions import Region

Damage = Callable[[Any], object]


def paged() -> BlockManager:
    """Row 0: blocks 0 1 2 (10 tokens, all computed); row 1: shares 0 1, its own 3; row 2: block 4; 3 free: 7 6 5."""
    memory = BlockManager(8, 4, 4, 5)
    first = memory.admit(10, filled=10)
    second, _ = memory.fork(first)
    memory.append(np.array([second]))
    memory.admit(2, filled=1)
    memory.audit()
    return memory


def put(array: Any, index: Any, value: Any) -> None:
    array[index] = value


def double_free(memory: BlockManager) -> None:
    memory._pool._free[memory._pool._num_unused] = 4
    memory._pool._num_unused += 1


def share_a_pending_slot(memory: BlockManager) -> None:
    """Row 2 still has to write a slot of block 4; a fork now holds it as well, with books that agree."""
    memory._tables.filled[2] = 2
    memory.fork(2 + (1 << 24))
    memory._tables.filled[2] = 1


PAGED: dict[str, tuple[Damage, str]] = {
    "count too high": (lambda m: put(m._pool.refcounts, 3, 2), "block 3 has reference count 2 but 1 holders"),
    "count too low": (lambda m: put(m._pool.refcounts, 0, 1), "block 0 has reference count 1 but 2 holders"),
    "count on a free block": (lambda m: put(m._pool.refcounts, 7, 1), "block 7 has reference count 1 but 0 holders"),
    "free and held": (double_free, "block 4 is free and held"),
    "leaked": (lambda m: setattr(m._pool, "_num_unused", 2), "block 5 is leaked"),
    "free twice": (lambda m: put(m._pool._free, 0, 6), "block 6 is on the free stack 2 times"),
    "foreign free entry": (lambda m: put(m._pool._free, 0, 8), "free entry 8 is no block of the pool"),
    "absurd free count": (lambda m: setattr(m._pool, "_num_unused", 9), "9 blocks of 8 are said to be unused"),
    "wrong sum": (lambda m: setattr(m._pool, "num_references", 9), "9 references are said to exist but 7 do"),
    "foreign block": (lambda m: put(m._tables.matrix, (0, 1), 8), "row 0 names block 8, no block of the pool"),
    "negative block": (lambda m: put(m._tables.matrix, (0, 1), -1), "row 0 names block -1, no block of the pool"),
    "block twice in a row": (lambda m: put(m._tables.matrix, (0, 1), 2), "row 0 names block 2 more than once"),
    "another's block": (lambda m: put(m._tables.matrix, (2, 0), 3), "block 3 has reference count 1 but 2 holders"),
    "stray entry": (lambda m: put(m._tables.matrix, (2, 3), 5), "row 2 names a block beyond its table"),
    "beyond the table": (lambda m: put(m._tables.lengths, 0, 13), "row 0 is longer than its blocks"),
    "blocks without tokens": (lambda m: put(m._tables.lengths, 0, 8), "row 0 has 3 blocks for 8 tokens"),
    "no token": (lambda m: put(m._tables.lengths, 2, 0), "row 2 is live but holds no token"),
    "computed before it exists": (lambda m: put(m._tables.filled, 2, 3), "row 2 has more computed tokens than tokens"),
    "negative computed": (lambda m: put(m._tables.filled, 2, -1), "row 2 has more computed tokens than tokens"),
    "table wider than its row": (lambda m: put(m._tables.num_blocks, 0, 6), "row 0 has a table longer than its row"),
    "two writers": (share_a_pending_slot, "row 2 will write into block 4, which another sequence holds"),
    "row lost": (lambda m: m._tables._free_rows.clear(), "row 3 is live and free, or neither, or free more than once"),
    "row free and live": (lambda m: m._tables._free_rows.append(1), "row 1 is live and free"),
    "row free twice": (lambda m: m._tables._free_rows.append(3), "row 3 is live and free, or neither, or free more"),
    "dead row with tokens": (lambda m: put(m._tables.lengths, 3, 1), "row 3 is dead but holds tokens or blocks"),
    "free row above": (lambda m: m._tables._free_rows.append(99), "free row 99 is no row of the tables"),
    "free row below": (lambda m: m._tables._free_rows.append(-1), "free row -1 is no row of the tables"),
    "less than nothing": (lambda m: put(m._tables.filled, 2, 4), "usage counts -1 slots as reserved"),
    "wrong generation": (lambda m: put(m._tables._generations, 1, 5), "row 1 has an id that is not of its generation"),
}


@pytest.mark.parametrize("name", PAGED)
def test_damage_to_paged_memory(name: str) -> None:
    damage, finding = PAGED[name]
    memory = paged()
    damage(memory)
    with pytest.raises(AuditError) as failure:
        memory.audit()
    assert any(found.startswith(finding) for found in failure.value.findings), failure.value.findings
    assert finding in str(failure.value)


def test_every_difference_is_listed() -> None:
    memory = paged()
    memory._pool.refcounts[[3, 4]] = 5
    memory._tables.filled[2] = -1
    with pytest.raises(AuditError) as failure:
        memory.audit()
    assert len(failure.value.findings) == 3


def contiguous() -> ContiguousManager:
    """Row 0: blocks 0-2, row 1: 3-4, row 2: 5-6, one hole: 7-9; then row 1 goes."""
    memory = ContiguousManager(10, 4, 4, 10, reservation=RESERVE_ORACLE)
    memory.admit(10, filled=10)
    second = memory.admit(5)
    memory.admit(8)
    memory.release(second)
    memory.audit()
    return memory


CONTIGUOUS: dict[str, tuple[Damage, str]] = {
    "overlap": (lambda m: put(m._regions, 2, Region(2, 2)), "block 2 is in Region(start=2, blocks=2) and in the"),
    "leak": (lambda m: m._placement._holes.pop(), "blocks 7 to 9 are leaked"),
    "leak in the middle": (lambda m: m._placement._holes.pop(0), "blocks 3 to 4 are leaked"),
    "hole over a region": (lambda m: put(m._placement._holes, 0, Region(3, 3)), "block 5 is in Region"),
    "beyond the pool": (lambda m: put(m._placement._holes, 1, Region(7, 4)), "block 10 is in Region"),
    "not merged": (
        lambda m: put(m._placement._holes, slice(1, 2), [Region(7, 1), Region(8, 2)]),
        "holes Region(start=7, blocks=1) and Region(start=8, blocks=2) are neighbours",
    ),
    "wrong total": (lambda m: setattr(m._placement, "num_free", 4), "the holes have 5 blocks but 4 are said"),
    "table elsewhere": (lambda m: put(m._tables.matrix, (2, 1), 7), "row 2 does not list the blocks of its Region"),
    "region without sequence": (lambda m: put(m._regions, 1, Region(3, 2)), "rows [0, 2] are live but regions exist"),
    "sequence without region": (lambda m: m._regions.pop(2), "rows [0, 2] are live but regions exist for [0]"),
    "expects too much": (lambda m: put(m._final, 0, 13), "row 0 expects 13 tokens in its Region"),
    "region of no row": (
        lambda m: put(m._regions, 99, Region(3, 2)),
        "rows [0, 2] are live but regions exist for [0, 2, 99]",
    ),
    "free row above": (lambda m: m._tables._free_rows.append(99), "free row 99 is no row of the tables"),
    "expects nothing": (lambda m: put(m._final, 0, 0), "row 0 expects 0 tokens in its Region"),
    "expects without living": (lambda m: put(m._final, 1, 13), "row 1 is dead but expects 13 tokens"),
    "less than nothing": (lambda m: put(m._final, 1, 13), "usage counts -11 slots as internal_fragmentation"),
    "beyond its region": (lambda m: put(m._tables.lengths, 0, 13), "row 0 is longer than its blocks"),
}


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_damage_to_contiguous_memory(name: str) -> None:
    damage, finding = CONTIGUOUS[name]
    memory = contiguous()
    damage(memory)
    with pytest.raises(AuditError) as failure:
        memory.audit()
    assert any(found.startswith(finding) for found in failure.value.findings), failure.value.findings


@pytest.mark.parametrize(
    ("holes", "finding"),
    [
        ([[0, 1], [6], [], []], "buddies 0 and 1 of 1 blocks were not merged"),
        ([[], [1, 6], [], []], "hole Region(start=1, blocks=2) is not aligned to its size"),
    ],
)
def test_damage_to_buddies(holes: list[list[int]], finding: str) -> None:
    memory = ContiguousManager(8, 4, 4, 8, reservation=RESERVE_POW2)
    memory.audit()
    memory._placement._starts = holes  # type: ignore[attr-defined]  # of the buddy placement
    with pytest.raises(AuditError) as failure:
        memory.audit()
    assert finding in failure.value.findings
