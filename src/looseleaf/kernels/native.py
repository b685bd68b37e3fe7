"""The C++ extension: finding it, loading it once, and saying so when it is not there."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

import looseleaf.kernels
from looseleaf.errors import ConfigurationError

ISA_VARIABLE = "LOOSELEAF_ISA"
KERNELS_VARIABLE = "LOOSELEAF_KERNELS"


class NativeExtensionMissing(UserWarning):
    """Looseleaf runs on its reference kernels, because the C++ extension was not built or cannot be loaded."""


class InstructionSetUnavailable(ConfigurationError):
    """The instruction set that was named is unknown, or this machine cannot run it.

    Attributes: `name`, and `available`, the names that can be chosen here, worst first.
    """

    def __init__(self, name: str, available: list[str], asked_by: str = "") -> None:
        super().__init__(
            f"This machine cannot run kernels for {name!r}{asked_by}.",
            hint=f"It can run {', '.join(available)}; by default the last of these."
            if available
            else "There is nothing to choose from without the native extension.",
        )
        self.name = name
        self.available = available


def _find_library() -> Path | None:
    # Another build of it, for tests: under sanitizers, or with instruction sets emulated.
    if override := os.environ.get("LOOSELEAF_NATIVE_LIBRARY"):
        return Path(override)
    # An editable install keeps sources and build products apart: the package then has two folders.
    candidates = (Path(folder) / "_native.so" for folder in looseleaf.kernels.__path__)
    return next((path for path in candidates if path.exists()), None)


@cache
def is_available() -> bool:
    """Load the extension on the first call. Warns once, naming the reason, if that fails.

    Raises `InstructionSetUnavailable` if the environment variable LOOSELEAF_ISA names what cannot be had.
    """
    path = _find_library()
    if path is None:
        reason = "it was not built (no C++ compiler when Looseleaf was installed?)"
    else:
        try:
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        except OSError as error:
            reason = f"{path} cannot be loaded: {error}"
        else:
            _obey_environment()
            return True
    warnings.warn(
        f"Looseleaf's native extension is missing: {reason}. The slower reference kernels are used, and "
        "dtype auto means float32.",
        NativeExtensionMissing,
        stacklevel=2,
    )
    return False


def is_chosen() -> bool:
    """Whether models run on the native kernels: they are there, and LOOSELEAF_KERNELS does not say "reference".

    Raises `ConfigurationError` if it says something else than that or "native".
    """
    chosen = os.environ.get(KERNELS_VARIABLE) or "native"
    if chosen not in ("native", "reference"):
        raise ConfigurationError(f"{KERNELS_VARIABLE} is {chosen!r}.", hint="Set it to native or reference.")
    return chosen == "native" and is_available()


def _obey_environment() -> None:
    name = os.environ.get(ISA_VARIABLE, "")
    if name:
        _select_isa(name, f", which {ISA_VARIABLE} asks for")


def _select_isa(name: str, asked_by: str = "") -> None:
    available = torch.ops.looseleaf.available_isas().split(",")
    if name not in available:
        raise InstructionSetUnavailable(name, available, asked_by)
    torch.ops.looseleaf.select_isa(name)


def available_isas() -> list[str]:
    """The instruction sets whose kernels this machine can run, worst first; [] without the extension."""
    return torch.ops.looseleaf.available_isas().split(",") if is_available() else []


def isa() -> str | None:
    """The instruction set whose kernels are used: the best, or what LOOSELEAF_ISA names; None without extension."""
    return torch.ops.looseleaf.isa_name() if is_available() else None


@contextmanager
def use_isa(name: str) -> Iterator[None]:
    """Use the kernels of another instruction set for a while; not while another thread computes.

    Raises `InstructionSetUnavailable`.
    """
    before = isa()
    if before is None:
        raise InstructionSetUnavailable(name, [])
    _select_isa(name)
    try:
        yield
    finally:
        torch.ops.looseleaf.select_isa(before)


def build_info() -> str:
    """The compiler that built the extension, and how; "" without it."""
    return torch.ops.looseleaf.build_info() if is_available() else ""


def cpu_features() -> list[str]:
    """Architecture, then instruction sets that processor and operating system both offer; [] without extension.

    The last is "emulated" where a build for tests runs those beyond AVX2 in software.
    """
    if not is_available():
        return []
    features: str = torch.ops.looseleaf.cpu_features()
    return features.split(",")


def copy_blocks(cache: Tensor, source: Tensor, destination: Tensor) -> None:
    """In every outer slice of `cache` (`[outer, num_blocks, …]`), copy block `source[i]` onto `destination[i]`.

    `source` and `destination` are int32 `[n]`; pairs take effect in order, so a later one may read what an
    earlier one wrote. Raises IndexError for a block outside the pool, before anything is copied.
    """
    if source.numel() == 0:
        return
    num_blocks = cache.shape[1]
    low = int(torch.minimum(source.min(), destination.min()))
    high = int(torch.maximum(source.max(), destination.max()))
    if low < 0 or high >= num_blocks:
        raise IndexError(f"block {low if low < 0 else high} is outside the pool of {num_blocks} blocks")
    if cache.is_cpu and is_available():
        torch.ops.looseleaf.copy_blocks(cache, source, destination)
        return
    for src, dst in zip(source.tolist(), destination.tolist(), strict=True):
        cache[:, dst].copy_(cache[:, src])
