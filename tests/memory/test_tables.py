from __future__ import annotations

import numpy as np
import pytest

from looseleaf.memory import ROW_MASK, DuplicateSequence, OutOfRows, UnknownSequence
from looseleaf.memory.interface import ROW_BITS
from looseleaf.memory.tables import BlockTables


def blocks(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_an_id_is_a_row_and_a_generation_that_grows_with_each_reuse() -> None:
    tables = BlockTables(2, 4)
    issued = set()
    for generation in range(1, 6):
        for row in range(2):
            seq = tables.open(blocks(row), 1, 1, "r")
            assert (seq & ROW_MASK, seq >> ROW_BITS) == (row, generation)
            issued.add(seq)
        with pytest.raises(OutOfRows):
            tables.require_row()
        for row in (1, 0):
            tables.close(row)
    assert len(issued) == 10
    for seq in issued:
        with pytest.raises(UnknownSequence):
            tables.row(seq)


def test_a_stale_id_is_not_the_one_that_lives_in_its_row() -> None:
    tables = BlockTables(3, 4)
    stale = tables.open(blocks(5), 1, 1, "old")
    tables.close(tables.row(stale))
    other, fresh = tables.open(blocks(6), 1, 1, "new"), tables.open(blocks(7), 1, 1, "new")
    assert stale & ROW_MASK == other & ROW_MASK
    assert tables.rows(np.array([fresh, other])).tolist() == [1, 0]
    assert tables.ids(np.array([1, 0])).tolist() == [fresh, other]
    with pytest.raises(UnknownSequence, match=f"id {stale}"):
        tables.rows(np.array([fresh, stale]))
    with pytest.raises(DuplicateSequence, match=f"Sequence {fresh}"):
        tables.rows(np.array([fresh, other, fresh]))


@pytest.mark.parametrize("max_num_seqs", [1, 2, 5])
def test_no_number_but_a_live_id_names_a_row(max_num_seqs: int) -> None:
    """Rows beyond the tables, the row that free rows seem to claim, and generation 0 included."""
    tables = BlockTables(max_num_seqs, 1)
    seq = tables.open(blocks(0), 1, 1, "r")
    near = [generation << ROW_BITS | row for generation in range(3) for row in (*range(max_num_seqs + 2), ROW_MASK)]
    for number in {-1, -ROW_MASK, *near} - {seq}:
        with pytest.raises(UnknownSequence):
            tables.row(number)
        with pytest.raises(UnknownSequence):
            tables.rows(np.array([number]))
    assert tables.row(seq) == 0


def test_closing_leaves_nothing_behind() -> None:
    tables = BlockTables(2, 4)
    tables.open(blocks(3, 1, 2), 9, 7, "a")
    second = tables.open(blocks(0), 2, 1, "b")
    assert len(tables) == 2
    tables.close(0)
    assert tables.matrix.tolist() == [[0] * 4, [0] * 4]
    assert (tables.lengths.tolist(), tables.filled.tolist(), tables.num_blocks.tolist()) == ([0, 2], [0, 1], [0, 1])
    assert tables.request_ids == ["", "b"]
    assert (len(tables), tables.num_free_rows) == (1, 1)
    assert tables.live_rows().tolist() == [second & ROW_MASK]


def test_entries_are_every_block_of_the_living_row_by_row() -> None:
    tables = BlockTables(4, 3)
    for row, table in enumerate(([4, 2], [9], [2, 7, 1])):
        tables.open(blocks(*table), len(table), 0, str(row))
    tables.close(1)
    entries = tables.entries()
    assert list(zip(*(array.tolist() for array in entries), strict=True)) == [
        (0, 0, 4),
        (0, 1, 2),
        (2, 0, 2),
        (2, 1, 7),
        (2, 2, 1),
    ]
    assert tables.blocks(2).tolist() == [2, 7, 1]
    assert BlockTables(4, 3).entries().blocks.tolist() == []
