"""Blocks that several sequences share are read once for all of them, and nobody's bits show it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from looseleaf.kernels import AttentionBatch, native
from looseleaf.kernels.cpu import CpuKVCache
from looseleaf.kernels.interface import Cascade
from native_case import every_dtype, every_isa, threads

pytestmark = pytest.mark.skipif(native._find_library() is None, reason="the native extension was not built")

PARTITION = 256


@dataclass(frozen=True)
class Sequence:
    parent: int
    """An earlier sequence, whose first blocks it takes; or its own number: nobody's."""
    shared: int
    """So many tokens of it, less what the last of these blocks holds beyond."""
    own: int
    queries: int


@dataclass
class Tree:
    """Sequences that took blocks of one another, in a cache where every slot holds numbers."""

    sequences: list[Sequence]
    block_size: int

    def __post_init__(self) -> None:
        tables: list[list[int]] = []
        self.lens: list[int] = []
        self.num_blocks = 1  # block 0 is nobody's
        for seq in self.sequences:
            own = seq.parent == len(tables)
            kept = 0 if own else min(seq.shared // self.block_size, len(tables[seq.parent]))
            length = kept * self.block_size + max(seq.own, seq.queries)
            fresh = -(-length // self.block_size) - kept
            taken = [] if own else tables[seq.parent][:kept]
            tables.append(taken + list(range(self.num_blocks, self.num_blocks + fresh)))
            self.num_blocks += fresh
            self.lens.append(length)
        width = max(map(len, tables))
        self.tables = torch.tensor([[*table, *[0] * (width - len(table))] for table in tables], dtype=torch.int32)
        starts = torch.tensor([0, *(seq.queries for seq in self.sequences)]).cumsum(0)
        self.starts = starts.int()

    def batch(self, cascade: Cascade) -> AttentionBatch:
        lens = torch.tensor(self.lens, dtype=torch.int32)
        return AttentionBatch(self.tables, lens, self.starts, torch.empty(0, dtype=torch.int64), 0, cascade)

    def cache(self, dtype: torch.dtype, num_kv_heads: int, head_dim: int, generator: torch.Generator) -> CpuKVCache:
        cache = CpuKVCache(
            num_layers=1,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=dtype,
        )
        slots = torch.arange(self.num_blocks * self.block_size)
        rows = torch.randn(2, len(slots), num_kv_heads, head_dim, generator=generator)
        cache.write(0, rows[0], rows[1], slots)
        return cache

    def groups(self) -> dict[int, set[frozenset[int]]]:
        """For each partition, who has the same blocks in it, of those whose queries see all of it."""
        found: dict[int, set[frozenset[int]]] = {}
        for partition in range(max(self.lens) // PARTITION):
            first, end = partition * PARTITION, (partition + 1) * PARTITION
            same: dict[tuple[int, ...], set[int]] = {}
            for row, (length, seq) in enumerate(zip(self.lens, self.sequences, strict=True)):
                if end <= length - seq.queries + 1:
                    blocks = self.tables[row, : -(-end // self.block_size)].tolist()
                    same.setdefault(tuple(blocks[first // self.block_size :]), set()).add(row)
            groups = {frozenset(rows) for rows in same.values() if len(rows) > 1}
            if groups:
                found[partition] = groups
        return found


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    sequences: list[Sequence] = []
    longest = draw(st.sampled_from([300, 700, 1_200]))
    for number in range(draw(st.integers(1, 9))):
        shared = draw(st.integers(0, longest) | st.sampled_from([256, 512, 768]))
        own = draw(st.integers(1, 40) | st.integers(1, 600) if number else st.integers(longest // 2, longest))
        queries = draw(st.just(1) | st.integers(1, 20))
        sequences.append(Sequence(draw(st.integers(0, number)), shared, own, queries))
    return Tree(sequences, draw(st.sampled_from([1, 7, 16, 128, 256, 512]) | st.integers(1, 40)))


def bits(numbers: Tensor) -> Tensor:
    return numbers.view(torch.int32)


@every_isa
@every_dtype
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tree=trees(),
    heads=st.tuples(st.integers(1, 2), st.integers(1, 9)),
    head_dim=st.sampled_from([8, 32, 40, 64, 128]) | st.integers(1, 40),
    window=st.none() | st.integers(1, 1_500),
    softcap=st.none() | st.floats(0.5, 50),
    seed=st.integers(0, 2**32),
)
def test_cascade_does_not_show(
    dtype: torch.dtype,
    tree: Tree,
    heads: tuple[int, int],
    head_dim: int,
    window: int | None,
    softcap: float | None,
    seed: int,
) -> None:
    kv_heads, group = heads
    generator = torch.Generator().manual_seed(seed)
    cache = tree.cache(dtype, kv_heads, head_dim, generator)
    query = torch.randn(int(tree.starts[-1]), kv_heads * group, head_dim, generator=generator)
    results = []
    modes: tuple[tuple[int, Cascade], ...] = ((1, "off"), (1, "on"), (2, "on"), (2, "auto"))
    for number, cascade in modes:
        lse = torch.empty(query.shape[:2])
        with threads(number):
            out = cache.attend(
                0,
                query,
                tree.batch(cascade),
                scale=head_dim**-0.5,
                sliding_window=window,
                softcap=softcap,
                lse=lse,
            )
        results.append((bits(out), bits(lse)))
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])


@every_isa
@every_dtype
def test_samples_of_samples(dtype: torch.dtype) -> None:
    """One system prompt for all, a question for each half, and a copied last block for each sample of it."""
    system, questions = Sequence(0, 0, 520, 1), [Sequence(0, 512, 300, 1), Sequence(0, 512, 530, 1)]
    samples = [Sequence(1 + i % 2, 768 if i % 2 == 0 else 1_024, 1 + 7 * i, 1) for i in range(10)]
    tree = Tree([system, *questions, *samples, Sequence(2, 700, 60, 13)], 16)
    generator = torch.Generator().manual_seed(1)
    cache = tree.cache(dtype, 3, 64, generator)
    query = torch.randn(int(tree.starts[-1]), 9, 64, generator=generator)
    off = cache.attend(0, query, tree.batch("off"), scale=0.125)
    for number in (1, 2, 3):
        with threads(number):
            assert torch.equal(cache.attend(0, query, tree.batch("on"), scale=0.125), off)
    assert len(tree.groups()) == 4


@every_isa
@every_dtype
def test_what_is_not_finite_is_its_readers_alone(dtype: torch.dtype) -> None:
    tree = Tree([Sequence(0, 0, 600, 1), Sequence(0, 512, 50, 1), Sequence(2, 0, 600, 1), Sequence(2, 256, 300, 1)], 16)
    generator = torch.Generator().manual_seed(2)
    cache = tree.cache(dtype, 1, 32, generator)
    query = torch.randn(4, 2, 32, generator=generator)
    clean = cache.attend(0, query, tree.batch("on"), scale=0.2)
    slot = tree.tables[2, 3:4].long() * 16
    cache.write(0, torch.full((1, 1, 32), math.nan), torch.full((1, 1, 32), math.inf), slot)
    dirty = cache.attend(0, query, tree.batch("on"), scale=0.2)
    assert torch.equal(dirty[:2], clean[:2])
    assert not dirty[2:].isfinite().any()


@settings(max_examples=200, deadline=None)
@given(tree=trees())
def test_every_shared_partition_is_found(tree: Tree) -> None:
    assert native.is_available()
    batch = tree.batch("on")
    flat = torch.ops.looseleaf.kv_shared_runs(
        batch.block_tables, batch.context_lens, batch.query_starts, tree.block_size
    )
    found: dict[int, set[frozenset[int]]] = {}
    while flat:
        first, last, count, *flat = flat
        members, flat = frozenset(flat[:count]), flat[count:]
        assert first < last
        for partition in range(first, last):
            assert members not in found.setdefault(partition, set())
            found[partition].add(members)
    assert found == tree.groups()


def test_another_cascade_is_refused() -> None:
    tree = Tree([Sequence(0, 0, 20, 1)], 16)
    cache = tree.cache(torch.float32, 1, 8, torch.Generator())
    with pytest.raises(ValueError, match="cascade must be auto, on or off, not maybe"):
        cache.attend(0, torch.zeros(1, 1, 8), tree.batch("maybe"), scale=1.0)  # type: ignore[arg-type]
