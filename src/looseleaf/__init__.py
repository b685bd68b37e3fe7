"""Looseleaf: an LLM serving engine whose keys and values live in a paged, shared, accountable pool.

`from looseleaf import LLM, SamplingParams` runs models. `looseleaf.memory` and `looseleaf.scheduler` need NumPy
alone and are useful without a model; importing them must not pay for torch, hence the lazy names here. (The version's
costs as much as all else that a command imports before it runs.)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from looseleaf.engine.llm import LLM as LLM
    from looseleaf.engine.outputs import CompletionOutput as CompletionOutput
    from looseleaf.engine.outputs import RequestOutput as RequestOutput
    from looseleaf.engine.sampling_params import SamplingParams as SamplingParams

    __version__: str

_HOME = {
    "LLM": "looseleaf.engine.llm",
    "CompletionOutput": "looseleaf.engine.outputs",
    "RequestOutput": "looseleaf.engine.outputs",
    "SamplingParams": "looseleaf.engine.sampling_params",
}

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name == "__version__":
        return _version()
    raise AttributeError(f"module 'looseleaf' has no attribute {name!r}")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("looseleaf")
    except PackageNotFoundError:  # imported from a source tree that was never installed
        return "0+unknown"
