"""What the LoRA adapters of an engine may be called. Imports no torch: the command line needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from looseleaf.errors import ConfigurationError

MAX_NAME_LENGTH = 256
"""Characters of a cache salt, and of an adapter's name."""


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
