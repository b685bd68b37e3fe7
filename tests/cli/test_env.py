"""`looseleaf env`: what it says agrees with the machine, with and without the extension."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from typing import Any

import pytest
import torch

from looseleaf import __version__
from looseleaf.kernels import machine, native
from looseleaf.kernels.machine import MatmulSpeed, ReadSpeed

Run = Callable[..., "tuple[int, str, str]"]


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Any:
    with machine.torch_threads(None):
        yield


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = [ReadSpeed("memory", 1 << 28, 1, 1.25e10), ReadSpeed("memory", 1 << 28, 2, 3e10)]
    monkeypatch.setattr(machine, "measure_reads", lambda: reads)
    monkeypatch.setattr(machine, "measure_matmuls", lambda: [MatmulSpeed("float32", 2, 1.234e12)])


def test_json_has_everything(cli: Run) -> None:
    code, output, _ = cli("env", "--json", "--threads", 1)
    assert code == 0
    found = json.loads(output)
    assert found["versions"]["looseleaf"] == __version__
    assert found["versions"]["python"] == platform.python_version()
    assert torch.__version__.startswith(found["versions"]["torch"].split("+")[0])
    assert found["threads"] == 1
    assert found["cores"]["logical"] == len(os.sched_getaffinity(0))
    assert found["cores"]["best_threads"] <= found["cores"]["most_threads"]
    assert 0 < found["memory"]["available"] <= found["memory"]["total"]
    kernels = found["kernels"]
    assert (kernels["isa"], kernels["available_isas"]) == (native.isa(), native.available_isas())
    assert kernels["features"] == native.cpu_features()
    assert {(each["place"], each["threads"]) for each in found["reads"]} == {("memory", 1), ("cache", 1)}
    assert [each["dtype"] for each in found["matmuls"]] == ["float32", "bfloat16"]
    assert all(each["bytes_per_second"] > 0 for each in found["reads"])
    assert all(each["flops"] > 0 for each in found["matmuls"])


@pytest.mark.usefixtures("measured")
def test_a_person_reads_it_in_80_columns(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, output, _ = cli("env", "--threads", 1)
    assert code == 0
    assert all(len(line) <= 80 for line in output.splitlines())
    for title in ("Versions", "Processor", "Kernels", "Memory", "Speed, measured now"):
        assert f"{title}" in output
    assert "12.5 GB/s with 1 thread, 30.0 GB/s with 2 threads" in output
    assert "1,234.0 GFLOP/s with 2 threads" in output
    assert "1 used" in output


def test_without_speed_nothing_is_measured(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "measure_reads", lambda: pytest.fail("measured"))
    code, output, _ = cli("env", "--no-speed")
    assert code == 0
    assert "Speed" not in output


@pytest.mark.usefixtures("measured")
def test_a_missing_extension_is_named(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "is_available", lambda: False)
    code, output, _ = cli("env")
    assert code == 0
    assert "MISSING: the slower reference kernels are used" in output
    code, output, _ = cli("env", "--json", "--no-speed")
    kernels = json.loads(output)["kernels"]
    assert (kernels["extension"], kernels["isa"], kernels["available_isas"]) == (False, None, [])


def test_more_threads_than_cores_are_refused(cli: Run) -> None:
    code, output, errors = cli("env", "--threads", 100_000)
    assert (code, output) == (2, "")
    assert "100000 threads were asked for" in errors
