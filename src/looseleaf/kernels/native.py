"""The C++ extension: finding it, loading it once, and saying so when it is not there."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

import looseleaf.kernels


class NativeExtensionMissing(UserWarning):
    """Looseleaf runs on its reference kernels, because the C++ extension was not built or cannot be loaded."""


def _find_library() -> Path | None:
    # An editable install keeps sources and build products apart: the package then has two folders.
    candidates = (Path(folder) / "_native.so" for folder in looseleaf.kernels.__path__)
    return next((path for path in candidates if path.exists()), None)


@cache
def is_available() -> bool:
    """Load the extension on the first call. Warns once, naming the reason, if that fails."""
    path = _find_library()
    if path is None:
        reason = "it was not built (no C++ compiler when Looseleaf was installed?)"
    else:
        try:
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        except OSError as error:
            reason = f"{path} cannot be loaded: {error}"
        else:
            return True
    warnings.warn(
        f"Looseleaf's native extension is missing: {reason}. The slower reference kernels are used, and "
        "dtype auto means float32.",
        NativeExtensionMissing,
        stacklevel=2,
    )
    return False


def cpu_features() -> list[str]:
    """Architecture, then instruction sets that processor and operating system both offer; [] without extension."""
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
