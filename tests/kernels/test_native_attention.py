"""The native kernels against plain attention, on every instruction set here; and that a row's bits are its own."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from looseleaf.kernels import native, paged_attention
from looseleaf.kernels.cpu import CpuKVCache
from looseleaf.kernels.factory import make_kv_cache
from looseleaf.kernels.interface import AttentionBatch, KVCache
from looseleaf.kernels.layout import block_bytes
from looseleaf.kernels.reference import ReferenceKVCache, quantise
from looseleaf.kernels.rotation import rotate, rotated_together
from native_case import DTYPES, every_dtype, every_isa, threads
from paged_case import PagedCase, plain_attention

pytestmark = pytest.mark.skipif(native._find_library() is None, reason="the native extension was not built")


def tolerance(isa: str, dtype: torch.dtype) -> float:
    """Sums of float32, or of queries and weights rounded to 8 bits, or to 16 bits of the largest."""
    if dtype == torch.int8:
        return 1e-3
    return 4e-2 if dtype == torch.bfloat16 and isa in ("avx512_bf16", "amx") else 3e-5


def native_fill(case: PagedCase, dtype: torch.dtype, poison: float = math.nan) -> KVCache:
    return case.fill(dtype, poison, CpuKVCache)


def stored(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """What a cache of this type keeps of values."""
    if dtype != torch.int8:
        return rows.to(dtype)
    numbers, scales = quantise(rows)
    return numbers.double() * scales.double()


def stored_keys(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """What it keeps of keys: int8 ones are rotated first. The rotation is its own inverse, up to a factor."""
    if dtype != torch.int8:
        return rows.to(dtype)
    return rotate(stored(rotate(rows), dtype)) / rotated_together(rows.shape[-1])


HEAD_DIMS = st.sampled_from([32, 40, 64, 80, 96, 104, 112, 128, 200, 256]) | st.integers(1, 64)


@st.composite
def cases(draw: st.DrawFn) -> PagedCase:
    block_size = draw(st.sampled_from([16, 32, 256]) | st.integers(1, 40))
    longest = draw(st.sampled_from([3, 40, 300, 600]))
    decodes = draw(st.lists(st.integers(1, longest), max_size=3))
    chunks = draw(st.lists(st.tuples(st.integers(1, longest), st.integers(1, 24)), max_size=2))
    shapes = [(c, 1) for c in decodes] + [(max(c, q), q) for c, q in chunks]
    num_kv_heads = draw(st.integers(1, 3))
    heads = (num_kv_heads * draw(st.integers(1, 9)), num_kv_heads)
    return PagedCase(draw(st.integers(0, 2**32)), shapes or [(1, 1)], block_size, heads, draw(HEAD_DIMS))


@every_isa
@every_dtype
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(), window=st.none() | st.integers(1, 400), softcap=st.none() | st.floats(0.5, 50))
def test_equals_plain_attention_over_what_is_stored(
    isa: str, dtype: torch.dtype, case: PagedCase, window: int | None, softcap: float | None
) -> None:
    scale = 1 / math.sqrt(case.head_dim)
    queries = torch.cat(case.queries)
    lse, expected_lse = torch.empty(2, *queries.shape[:2])
    options = {"scale": scale, "sliding_window": window, "softcap": softcap}
    got = native_fill(case, dtype).attend(1, queries, case.batch(), lse=lse, **options)
    expected = case.fill(dtype).attend(1, queries, case.batch(), lse=expected_lse, **options)
    allowed = tolerance(isa, dtype)
    torch.testing.assert_close(got, expected, atol=allowed, rtol=allowed)
    torch.testing.assert_close(lse, expected_lse, atol=allowed, rtol=allowed)


@every_isa
@every_dtype
@pytest.mark.parametrize("head_dim", [32, 40, 72, 256])
def test_equals_float64(isa: str, dtype: torch.dtype, head_dim: int) -> None:
    case = PagedCase(5, [(700, 1), (1, 1), (300, 9)], 16, (6, 2), head_dim)
    got = native_fill(case, dtype).attend(1, torch.cat(case.queries), case.batch(), scale=head_dim**-0.5)
    expected = [
        plain_attention(q, stored_keys(k, dtype), stored(v, dtype), head_dim**-0.5, None)[0]
        for q, k, v in zip(case.queries, case.keys, case.values, strict=True)
    ]
    allowed = tolerance(isa, dtype)
    torch.testing.assert_close(got.double(), torch.cat(expected), atol=allowed, rtol=allowed)


# Whose bits must not depend on what: (context, queries) of each sequence. 1,100 tokens are more than four partitions.
SHAPES = [(5, 1), (1_100, 1), (256, 1), (257, 1), (700, 40), (33, 33), (300, 7)]


def attended(case: PagedCase, dtype: torch.dtype, window: int | None = None, softcap: float | None = None) -> Tensor:
    cache = native_fill(case, dtype)
    return cache.attend(1, torch.cat(case.queries), case.batch(), scale=0.3, sliding_window=window, softcap=softcap)


@every_isa
@every_dtype
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (70, None), (None, 5.0)])
def test_threads_blocks_and_block_sizes_do_not_show(
    dtype: torch.dtype, window: int | None, softcap: float | None
) -> None:
    expected = attended(PagedCase(3, SHAPES, 16, (6, 2), 40), dtype, window, softcap)
    with threads(2):
        assert torch.equal(attended(PagedCase(3, SHAPES, 16, (6, 2), 40), dtype, window, softcap), expected)
    for block_size, shuffle in ((16, 9), (7, 1), (32, 2), (1, 3), (256, 4), (48, 5)):
        moved = PagedCase(3, SHAPES, block_size, (6, 2), 40, shuffle_seed=shuffle)
        assert torch.equal(attended(moved, dtype, window, softcap), expected)


@every_isa
@every_dtype
@pytest.mark.parametrize(("heads", "head_dim"), [((6, 2), 40), ((14, 1), 32), ((1, 1), 64)])
def test_neither_company_nor_chunks_show(dtype: torch.dtype, heads: tuple[int, int], head_dim: int) -> None:
    case = PagedCase(4, SHAPES, 16, heads, head_dim)
    cache, batch = native_fill(case, dtype), case.batch()
    for window in (None, 90):
        whole = cache.attend(1, torch.cat(case.queries), batch, scale=0.2, sliding_window=window)
        starts = batch.query_starts.tolist()
        for seq, (context, queries) in enumerate(case.shapes):
            for count in (1, 5, 16):
                for first in range(0, queries, count):
                    last = min(queries, first + count)
                    alone = AttentionBatch(
                        batch.block_tables[seq : seq + 1],
                        torch.tensor([context - queries + last], dtype=torch.int32),
                        torch.tensor([0, last - first], dtype=torch.int32),
                        batch.slots[:0],
                        int(last - first == 1),
                    )
                    with threads(1 + first % 2):
                        part = cache.attend(1, case.queries[seq][first:last], alone, scale=0.2, sliding_window=window)
                    assert torch.equal(part, whole[starts[seq] + first : starts[seq] + last])


@every_isa
@every_dtype
@pytest.mark.parametrize("block_size", [16, 12])
def test_what_is_not_finite_stays_in_its_sequence(dtype: torch.dtype, block_size: int) -> None:
    case = PagedCase(7, [(20, 1), (33, 1), (50, 12), (47, 15)], block_size, (4, 2), 32)
    queries = torch.cat(case.queries)
    clean = native_fill(case, dtype, poison=0.0).attend(1, queries, case.batch(), scale=0.5)
    for bad in (math.nan, math.inf):
        assert torch.equal(native_fill(case, dtype, poison=bad).attend(1, queries, case.batch(), scale=0.5), clean)
    case.values[1].fill_(math.inf)
    case.keys[1].fill_(math.nan)
    dirty = native_fill(case, dtype).attend(1, queries, case.batch(), scale=0.5)
    assert not dirty[1].isfinite().any()
    keep = torch.arange(len(queries)) != 1
    assert torch.equal(dirty[keep], clean[keep])


@every_isa
@every_dtype
def test_a_later_token_that_is_not_finite_does_not_reach_back(isa: str, dtype: torch.dtype) -> None:
    if isa == "amx" and dtype == torch.bfloat16:
        pytest.skip("a tile multiplies its later tokens by 0")
    case = PagedCase(8, [(300, 40)], 16, (6, 2), 32)
    clean = attended(case, dtype)
    case.values[0][280] = math.nan
    case.keys[0][281] = math.inf
    assert torch.equal(attended(case, dtype)[:20], clean[:20])


@every_isa
@every_dtype
def test_scores_far_apart(dtype: torch.dtype) -> None:
    """A partition whose scores are all far below another's has no weight, and makes no NaN."""
    case = PagedCase(9, [(600, 1), (600, 30)], 16, (2, 1), 32)
    for keys in case.keys:
        keys[:, :] = -100.0
        keys[100] = 100.0
    case.queries = [torch.ones_like(q) for q in case.queries]
    got = attended(case, dtype)
    for rows, values in zip((got[:1], got[1:]), case.values, strict=True):
        torch.testing.assert_close(rows, stored(values[100:101], dtype).float().expand_as(rows), atol=1e-2, rtol=1e-2)


@every_dtype
def test_copied_blocks_read_the_same(dtype: torch.dtype) -> None:
    case = PagedCase(11, [(30, 1)], 16, (2, 1), 8)
    cache = native_fill(case, dtype, poison=3.0)
    used = case.tables[0].tolist()
    spare = sorted(set(range(case.num_blocks)) - set(used))
    before = cache.attend(1, case.queries[0], case.batch(), scale=1.0)
    cache.copy_blocks(torch.tensor(used, dtype=torch.int32), torch.tensor(spare[:2], dtype=torch.int32))
    case.tables[0, :2] = torch.tensor(spare[:2])
    assert torch.equal(cache.attend(1, case.queries[0], case.batch(), scale=1.0), before)


@every_dtype
@pytest.mark.parametrize("block_size", [1, 5, 16, 256])
@pytest.mark.parametrize("head_dim", [1, 8, 33, 64, 80])
def test_sizes_are_those_that_the_pool_is_planned_with(dtype: torch.dtype, block_size: int, head_dim: int) -> None:
    assert native.is_available()
    name = str(dtype).removeprefix("torch.")
    planned = block_bytes(dtype, block_size, 3, head_dim)
    assert torch.ops.looseleaf.kv_block_bytes(name, block_size, 3, head_dim) == planned
    plain = 2 * 3 * block_size * (head_dim * dtype.itemsize + (2 if dtype == torch.int8 else 0))
    assert plain <= planned < plain + 64
    if block_size % 16 == 0 and head_dim % 8 == 0:
        assert planned == plain


@every_isa
def test_written_numbers_are_those_of_the_reference() -> None:
    """A sequence of one token attends to its value alone."""
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(40, 2, 33, generator=generator) * torch.logspace(-20, 20, 40)[:, None, None]
    slots = torch.arange(40) * 16 + torch.arange(40) % 16
    for dtype in DTYPES:
        cache = CpuKVCache(num_layers=1, num_blocks=40, block_size=16, num_kv_heads=2, head_dim=33, dtype=dtype)
        cache.write(0, values, values, torch.arange(40) * 16)
        every = torch.arange(41, dtype=torch.int32)
        ones = torch.ones(40, dtype=torch.int32)
        got = cache.attend(
            0, torch.zeros_like(values), AttentionBatch(every[:40, None], ones, every, slots, 40), scale=1.0
        )
        torch.testing.assert_close(got, stored(values, dtype).float(), atol=0, rtol=1e-6)


def test_bfloat16_queries_give_bfloat16() -> None:
    case = PagedCase(6, [(40, 1)], 16, (4, 2), 32)
    queries = case.queries[0].bfloat16()
    cache = native_fill(case, torch.bfloat16)
    got = cache.attend(1, queries, case.batch(), scale=0.2)
    assert torch.equal(got, cache.attend(1, queries.float(), case.batch(), scale=0.2).bfloat16())


def test_the_factory_falls_back_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"num_layers": 1, "num_blocks": 2, "block_size": 16, "num_kv_heads": 1, "head_dim": 32}
    assert isinstance(make_kv_cache(**sizes, dtype=torch.float32), CpuKVCache)
    monkeypatch.setattr(native, "is_available", lambda: False)
    assert isinstance(make_kv_cache(**sizes, dtype=torch.float32), ReferenceKVCache)


def test_paged_attention_is_the_cache_s_attention() -> None:
    case = PagedCase(6, [(40, 1), (30, 8)], 16, (4, 2), 32)
    batch, queries = case.batch(), torch.cat(case.queries)
    for kind in (CpuKVCache, ReferenceKVCache):
        cache = case.fill(torch.float32, kind=kind)
        out, lse = paged_attention(
            queries, cache, 1, batch.block_tables, batch.context_lens, batch.query_starts, return_lse=True
        )
        assert lse is not None
        expected = [
            plain_attention(q, k, v, 32**-0.5, None)
            for q, k, v in zip(case.queries, case.keys, case.values, strict=True)
        ]
        torch.testing.assert_close(out.double(), torch.cat([each for each, _ in expected]), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lse.double(), torch.cat([each for _, each in expected]), atol=1e-5, rtol=1e-5)


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


@pytest.mark.parametrize(
    ("error", "changes", "message"),
    [
        (IndexError, {"block_tables": ints(0, 1, 99)[None]}, "block 99 of sequence 0 is outside the pool of 6"),
        (IndexError, {"block_tables": ints(0, -1, 2)[None]}, "block -1"),
        (ValueError, {"block_tables": ints(0, 1)[None]}, "needs 3 blocks but its table has 2"),
        (ValueError, {"block_tables": ints(0, 1, 2)[None].long()}, "int32 matrix"),
        (ValueError, {"block_tables": ints(0, 1, 2)}, "int32 matrix"),
        (ValueError, {"block_tables": torch.zeros(3, 1, dtype=torch.int32)}, "3 block tables"),
        (ValueError, {"block_tables": torch.zeros(3, 6, dtype=torch.int32)[::3, ::2]}, "contiguous rows"),
        (ValueError, {"context_lens": ints(-40)}, "a context of -40"),
        (ValueError, {"context_lens": ints(0)}, "a context of 0"),
        (ValueError, {"context_lens": ints(1)}, "2 query rows but a context of 1"),
        (ValueError, {"context_lens": torch.tensor([40.0])}, "int32 vector"),
        (ValueError, {"query_starts": ints(0, 3)}, "to the 2 query rows"),
        (ValueError, {"query_starts": ints(1, 2)}, "query_starts must run from 0"),
        (ValueError, {"query_starts": ints(0, 1, 2)}, "3 query_starts for 1 context lengths"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(error: type[Exception], changes: dict[str, Tensor], message: str) -> None:
    case = PagedCase(1, [(40, 2)], 16, (4, 2), 32)
    cache = native_fill(case, torch.float32)
    batch = dataclasses.replace(case.batch(), **changes)
    with pytest.raises(error, match=message):
        cache.attend(1, case.queries[0], batch, scale=1.0)


def test_falling_starts_are_refused() -> None:
    case = PagedCase(1, [(40, 1), (40, 1)], 16, (4, 2), 32)
    batch = dataclasses.replace(case.batch(), query_starts=ints(0, 3, 2))
    with pytest.raises(ValueError, match="must not fall: 3, then 2"):
        native_fill(case, torch.float32).attend(1, torch.cat(case.queries), batch, scale=1.0)


@pytest.mark.parametrize(
    ("error", "query", "options", "message"),
    [
        (ValueError, torch.zeros(2, 5, 32), {}, "5 query heads do not share 2 KV heads"),
        (ValueError, torch.zeros(2, 4, 16), {}, "query must be"),
        (ValueError, torch.zeros(2, 128), {}, "query must be"),
        (ValueError, torch.zeros(2, 4, 32, dtype=torch.int32), {}, "float32 or bfloat16"),
        (ValueError, torch.zeros(2, 4, 32), {"lse": torch.zeros(2, 2)}, "lse must be"),
        (ValueError, torch.zeros(2, 4, 32), {"lse": torch.zeros(4, 2).t()}, "lse must be"),
        (ValueError, torch.zeros(2, 4, 32), {"sliding_window": -1}, "sliding_window must be"),
        (ValueError, torch.zeros(2, 4, 32), {"softcap": -1.0}, "softcap must be"),
        (IndexError, torch.zeros(2, 4, 32), {"layer": 2}, "layer 2 is outside the cache of 2 layers"),
        (IndexError, torch.zeros(2, 4, 32), {"layer": -1}, "layer -1"),
    ],
)
def test_queries_and_options_that_do_not_fit_are_refused(
    error: type[Exception], query: Tensor, options: dict[str, object], message: str
) -> None:
    case = PagedCase(1, [(40, 2)], 16, (4, 2), 32)
    arguments = {"layer": 1, "scale": 1.0} | options
    with pytest.raises(error, match=message):
        native_fill(case, torch.float32).attend(query=query, batch=case.batch(), **arguments)


@pytest.mark.parametrize(
    ("error", "key", "slots", "message"),
    [
        (IndexError, torch.zeros(1, 2, 32), torch.tensor([96]), "slot 96 is outside the cache of 96 slots"),
        (IndexError, torch.zeros(1, 2, 32), torch.tensor([-1]), "slot -1"),
        (ValueError, torch.zeros(1, 2, 32), ints(3), "int64 vector"),
        (ValueError, torch.zeros(2, 2, 32), torch.tensor([3]), "2 keys and 2 values for 1 slots"),
        (ValueError, torch.zeros(1, 3, 32), torch.tensor([3]), "key must be"),
        (ValueError, torch.zeros(1, 2, 16), torch.tensor([3]), "key must be"),
    ],
)
def test_writes_that_do_not_fit_are_refused_and_write_nothing(
    error: type[Exception], key: Tensor, slots: Tensor, message: str
) -> None:
    cache = CpuKVCache(num_layers=1, num_blocks=6, block_size=16, num_kv_heads=2, head_dim=32, dtype=torch.int8)
    with pytest.raises(error, match=message):
        cache.write(0, key, key, slots)
    assert not cache.storage.any()


def test_a_dtype_that_no_cache_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not torch\.float16"):
        CpuKVCache(num_layers=1, num_blocks=6, block_size=16, num_kv_heads=2, head_dim=32, dtype=torch.float16)


def test_the_operators_check_the_cache_they_are_given() -> None:
    storage = torch.zeros(1, 6, block_bytes(torch.int8, 16, 2, 32), dtype=torch.uint8)
    key = torch.zeros(1, 2, 32)
    slots = torch.zeros(1, dtype=torch.int64)
    layout = ("int8", 16, 2, 32)
    for wrong in (storage[:, :, :-1], storage.view(torch.int8), storage[0], storage[:, ::2]):
        with pytest.raises(RuntimeError, match="contiguous uint8 tensor"):
            torch.ops.looseleaf.kv_write(wrong, 0, key, key, slots, *layout)
    with pytest.raises(RuntimeError, match="head_dim must be from 1 to 256"):
        torch.ops.looseleaf.kv_write(storage, 0, key, key, slots, "int8", 16, 2, 257)
    empty = torch.empty(1, 1, 0, dtype=torch.uint8)
    for sizes in ((1 << 60, 1), (16, 1 << 60)):  # their bytes overflow to 0
        with pytest.raises(RuntimeError, match="must be from 1 to"):
            torch.ops.looseleaf.kv_write(empty, 0, key[:, :1], key[:, :1], slots, "bfloat16", *sizes, 32)
    with pytest.raises(RuntimeError, match="block_size must be from 1 to"):
        torch.ops.looseleaf.kv_shared_runs(torch.zeros(1, 1, dtype=torch.int32), ints(300), ints(0, 1), (1 << 63) - 200)
    with pytest.raises(RuntimeError, match="KV dtype"):
        torch.ops.looseleaf.kv_write(storage, 0, key, key, slots, "int4", 16, 2, 32)
