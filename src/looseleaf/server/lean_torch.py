"""Torch without what only its compiler needs: a third less time until it is imported.

`import torch` ends with two of its largest parts, which serving never uses: the exporter and the shape functions of
operators for tensors without data. Here they become modules that are loaded when somebody looks into them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_LAZY = frozenset({"torch._meta_registrations", "torch.distributions", "torch.export", "torch.utils.data"})


def defer_compiler_parts() -> None:
    """To be called before torch is imported; later it has no effect. Not for programs that compile or export models."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _LAZY:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _LazyLoader(spec.loader)
        return spec


class _LazyLoader(Loader):
    """(importlib's own loads a module as soon as it is imported a second time.)"""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LazyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["_loader"] = self._loader


class _LazyModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        """Called for what is not there: at first all but what the import system has set."""
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]  # the next lookup is an ordinary one
        loader: Loader = vars(self).pop("_loader")
        loader.exec_module(self)
        return getattr(self, name)
