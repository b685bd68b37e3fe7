"""Shared by the tests of every layer."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from looseleaf.kernels import native
from looseleaf.models.download import ChecksumMismatch, DownloadFailed
from looseleaf.models.store import resolve_model

# How long an example takes says nothing: machines are shared, and sanitizers slow.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure() -> None:
    """An extension that was named must be there: nothing may pass on the reference kernels in its place."""
    if os.environ.get("LOOSELEAF_NATIVE_LIBRARY"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                native.is_available()
            except native.NativeExtensionMissing as error:
                raise pytest.UsageError(str(error)) from error


def pytest_report_header() -> str:
    """Which build of the extension is tested, and on which instruction sets."""
    if native._find_library() is None:
        return "native extension: none"
    emulated = "; beyond AVX2 EMULATED" if "emulated" in native.cpu_features() else ""
    return f"native extension: {native._find_library()}: {torch.ops.looseleaf.available_isas()}{emulated}"


@pytest.fixture
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Chosen while the test runs; see `native_case.every_isa`."""
    if request.param not in native.available_isas():
        pytest.skip(f"this machine has no {request.param}")
    with native.use_isa(request.param):
        yield request.param


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The default model's file, downloaded when it is not cached. Where CI is set, it must be there."""
    try:
        return resolve_model().path
    except ChecksumMismatch:
        raise
    except DownloadFailed as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the default model is neither cached nor downloadable: {error}")


SUMMARIES = {
    "exactness": "exactness: every answer bit by bit that of its request alone",
    "faults": "faults: what was done to servers, and they went on",
}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the suites that record it went through, summed up over their tests."""
    totals: dict[str, Counter[str]] = {name: Counter() for name in SUMMARIES}
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        for name, value in getattr(report, "user_properties", ()):
            if name in totals and report.when == "call":
                totals[name].update(value)
    for name, total in totals.items():
        if total:
            terminalreporter.section(SUMMARIES[name])
            terminalreporter.write_line(", ".join(f"{count:,} {what}" for what, count in total.most_common()))
