"""The C++ extension against plain Python, and life without it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.errors import ConfigurationError
from looseleaf.kernels import native

needs_extension = pytest.mark.skipif(
    native._find_library() is None, reason="the native extension was not built on this machine"
)


@given(data=st.data(), shape=st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 5)))
@settings(max_examples=100, deadline=None)
@pytest.mark.parametrize("extension", [pytest.param(True, marks=needs_extension), False])
def test_copies_take_effect_in_order(extension: bool, data: st.DataObject, shape: tuple[int, int, int]) -> None:
    blocks = st.integers(0, shape[1] - 1)
    pairs = data.draw(st.lists(st.tuples(blocks, blocks), max_size=8))
    cache = torch.arange(torch.tensor(shape).prod().item(), dtype=torch.float32).view(shape)
    expected = cache.tolist()
    for outer in expected:
        for source, destination in pairs:
            outer[destination] = list(outer[source])
    ids = [torch.tensor([pair[side] for pair in pairs], dtype=torch.int32) for side in (0, 1)]
    with pytest.MonkeyPatch.context() as patch:
        if not extension:
            patch.setattr(native, "is_available", lambda: False)
        native.copy_blocks(cache, *ids)
    assert cache.tolist() == expected


@pytest.mark.parametrize(("source", "destination"), [(0, 4), (4, 0), (-1, 0), (0, -1)])
def test_a_block_outside_the_pool_is_refused_and_nothing_is_copied(source: int, destination: int) -> None:
    cache = torch.arange(8.0).view(1, 4, 2)
    ids = [torch.tensor([2, x], dtype=torch.int32) for x in (source, destination)]
    with pytest.raises(IndexError, match="outside the pool of 4 blocks"):
        native.copy_blocks(cache, *ids)
    assert torch.equal(cache, torch.arange(8.0).view(1, 4, 2))


def test_blocks_without_bytes_are_nothing_to_copy() -> None:
    native.copy_blocks(torch.empty(2, 3, 0), torch.tensor([0], dtype=torch.int32), torch.tensor([1], dtype=torch.int32))


@needs_extension
def test_the_native_boundary_checks_for_itself() -> None:
    assert native.is_available()
    ids = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="outside the pool"):
        torch.ops.looseleaf.copy_blocks(torch.zeros(1, 2, 2), ids, ids + 2)
    with pytest.raises(RuntimeError, match="int32"):
        torch.ops.looseleaf.copy_blocks(torch.zeros(1, 2, 2), ids.long(), ids.long())
    with pytest.raises(RuntimeError, match="contiguous"):
        torch.ops.looseleaf.copy_blocks(torch.zeros(2, 2, 2).transpose(0, 2), ids, ids)


@needs_extension
def test_cpu_features_agree_with_the_operating_system() -> None:
    features = native.cpu_features()
    if features[0] != "x86_64":
        pytest.skip(f"only x86-64 lists its flags in a known form, this is {features[0]}")
    if features[-1] == "emulated":
        pytest.skip("this build emulates instruction sets")
    flags = set(Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split())
    expected = {
        "avx2": {"avx2", "fma"},
        "f16c": {"f16c", "avx2", "fma"},
        "avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl"},
        "avx512_vnni": {"avx512_vnni", "avx512f"},
        "avx512_bf16": {"avx512_bf16", "avx512f"},
        "amx_bf16": {"amx_tile", "amx_bf16"},
        "amx_int8": {"amx_tile", "amx_int8"},
    }
    assert set(features[1:]) == {name for name, needed in expected.items() if needed <= flags}


def test_without_the_extension_one_loud_warning_and_everything_works() -> None:
    script = """
        import warnings
        import torch
        from looseleaf.kernels import native
        native._find_library = lambda: None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cache = torch.arange(6.0).view(1, 3, 2)
            for _ in range(3):
                native.copy_blocks(cache, torch.tensor([2], dtype=torch.int32), torch.tensor([0], dtype=torch.int32))
            assert native.cpu_features() == []
        assert cache[0, 0].tolist() == [4.0, 5.0]
        print(len(caught), caught[0].message)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.startswith("1 Looseleaf's native extension is missing: it was not built")


def test_the_environment_chooses_between_native_and_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "is_available", lambda: True)
    for value, chosen in (("", True), ("native", True), ("reference", False)):
        monkeypatch.setenv("LOOSELEAF_KERNELS", value)
        assert native.is_chosen() is chosen
    monkeypatch.setenv("LOOSELEAF_KERNELS", "fast")
    with pytest.raises(ConfigurationError, match="native or reference"):
        native.is_chosen()
    monkeypatch.delenv("LOOSELEAF_KERNELS")
    monkeypatch.setattr(native, "is_available", lambda: False)
    assert not native.is_chosen()
