"""The LoRA adapters of an engine: which a request means, and loading them before the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from looseleaf.errors import InvalidRequest
from looseleaf.models.config import ModelConfig
from looseleaf.models.errors import AdapterError
from looseleaf.models.lora import LoraAdapter, load_lora


class UnknownAdapter(InvalidRequest, ValueError):
    """A request names an adapter that the engine was not given.

    Attributes: `name`, and `available`, the names that there are.
    """

    def __init__(self, name: object, available: Iterable[str]) -> None:
        self.name = name
        self.available = sorted(available)
        super().__init__(
            f"There is no adapter {name!r:.80}.",
            hint=f"There are {', '.join(self.available)}."
            if self.available
            else "The engine has none; give it some with lora (on the command line --lora NAME=PATH).",
        )


def adapter_number(adapters: Mapping[str, int], name: str | None) -> int:
    """The model's number for an adapter, -1 for None. Raises `UnknownAdapter`."""
    if name is None:
        return -1
    if not isinstance(name, str) or name not in adapters:
        raise UnknownAdapter(name, adapters)
    return adapters[name]


def load_adapters(lora: Mapping[str, str | Path], model: ModelConfig) -> dict[str, LoraAdapter]:
    """Every adapter by its name. Raises as `load_lora` does, and says which adapter it is."""
    loaded = {}
    for name, path in lora.items():
        try:
            loaded[name] = load_lora(Path(path).expanduser(), model)
        except AdapterError as error:
            raise type(error)(f"Adapter {name!r}: {error.message}", hint=error.hint) from error
    return loaded
