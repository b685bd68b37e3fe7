"""Names, sizes, and the table."""

from __future__ import annotations

import pytest

from looseleaf.plan.errors import InvalidPlan, UnknownHardware
from looseleaf.plan.hardware import find_hardware, format_size, known_hardware, parse_size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("24GiB", 24 * 2**30), ("24 GB", 24 * 10**9), ("800MB", 800 * 10**6), ("1.5TiB", 3 * 2**39), ("4096", 4096)],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "-3GiB", "3 gallons", "0", "1e30GiB", "nan", "3GiB4"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(InvalidPlan):
        parse_size(text)


@pytest.mark.parametrize("name", ["rtx-4090", "RTX 4090", "NVIDIA GeForce RTX 4090", "rtx_4090", "RTX4090"])
def test_names_as_people_write_them(name: str) -> None:
    assert find_hardware(name).name == "rtx-4090"


def test_memory_alone_or_beside_a_name() -> None:
    assert find_hardware("24GiB").memory_bytes == 24 * 2**30
    assert find_hardware("24GiB").bandwidth is None
    assert find_hardware("epyc-9654").memory_bytes is None
    assert find_hardware("epyc-9654:384GiB").memory_bytes == 384 * 2**30
    with pytest.raises(UnknownHardware, match="rtx-4090"):
        find_hardware("rtx-4099")
    with pytest.raises(UnknownHardware):
        find_hardware("abacus:3GiB")


def test_every_device_has_figures_and_their_source() -> None:
    for device in known_hardware().values():
        assert device.bandwidth is not None
        assert 5e10 < device.bandwidth < 2e13
        assert device.source
        assert device.peak_flops("float32")
        assert device.peak_flops("bfloat16")
        assert device.kind == "cpu" or (device.memory_bytes or 0) > 10**10
        # No device computes an operation for less than half a byte of traffic, or for more than a kilobyte.
        assert 2 < (device.peak_flops("bfloat16") or 0) / device.bandwidth < 1000


def test_format_size() -> None:
    assert [format_size(n) for n in (0, 1023, 1536, 2**30, 100 * 2**30)] == [
        "0 B",
        "1,023 B",
        "1.50 KiB",
        "1.00 GiB",
        "100.0 GiB",
    ]
