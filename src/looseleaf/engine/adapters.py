"""The LoRA adapters of an engine: what they may be called, and loading them before the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from looseleaf.errors import ConfigurationError, InvalidRequest
from looseleaf.models.config import ModelConfig
from looseleaf.models.errors import AdapterError
from looseleaf.models.lora import LoraAdapter, load_lora

MAX_NAME_LENGTH = 256
"""Characters of a cache salt, and of an adapter's name."""


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


def check_lora(lora: object) -> None:
    """Raise `ConfigurationError` unless `lora` maps names to paths."""
    if not isinstance(lora, Mapping):
        raise ConfigurationError(f"lora is {lora!r:.80} but must map names to folders.", hint="{'name': 'path'}.")
    for name, path in lora.items():
        if not isinstance(name, str) or not name or name != name.strip() or not name.isprintable():
            raise ConfigurationError(f"{name!r:.80} is no name for an adapter.", hint="Use a text without line ends.")
        if len(name) > MAX_NAME_LENGTH:
            raise ConfigurationError(
                f"An adapter's name has {len(name)} characters.", hint=f"Use at most {MAX_NAME_LENGTH}."
            )
        if not isinstance(path, str | Path) or not str(path):
            raise ConfigurationError(f"The adapter {name!r} has the path {path!r:.80}.", hint="Pass peft's folder.")


def parse_lora(entries: Iterable[str]) -> dict[str, str]:
    """["name=path", …] → {"name": "path", …}. Raises `ConfigurationError`, for a name given twice too."""
    lora: dict[str, str] = {}
    for entry in entries:
        name, separator, path = entry.partition("=")
        name = name.strip()
        if not separator or not name or not path:
            raise ConfigurationError(f"{entry!r:.80} names no adapter.", hint="Write NAME=PATH, for example sql=./sql.")
        if name in lora:
            raise ConfigurationError(f"Two adapters are called {name!r:.80}.", hint="Give each a name of its own.")
        lora[name] = path
    return lora


def load_adapters(lora: Mapping[str, str | Path], model: ModelConfig) -> dict[str, LoraAdapter]:
    """Every adapter by its name. Raises as `load_lora` does, and says which adapter it is."""
    loaded = {}
    for name, path in lora.items():
        try:
            loaded[name] = load_lora(Path(path).expanduser(), model)
        except AdapterError as error:
            raise type(error)(f"Adapter {name!r}: {error.message}", hint=error.hint) from error
    return loaded
