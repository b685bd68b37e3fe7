"""What the front tells the engine's process at its start: a file in a folder that only they can read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from looseleaf.server.log_format import LogFormat

_FILE = "settings.json"


class EngineSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which engine is to run."""

    model: str
    """An alias, a folder, a file or a hub name, as `load_engine` takes it."""
    config: dict[str, Any] = {}
    """Keywords of `EngineConfig`."""
    threads: int | None = None
    log_level: str = "INFO"
    log_format: LogFormat = "text"
    audit_interval: float = 60.0
    """Seconds between audits of the KV cache's books while the engine works; 0: none. It is audited when it comes to
    rest, too."""
    parent: int = 0
    """The front's process id; 0: nobody whose end would be this one's."""

    def write(self, folder: Path) -> None:
        (folder / _FILE).write_bytes(msgspec.json.encode(self, enc_hook=os.fspath))

    @classmethod
    def read(cls, folder: Path) -> EngineSettings:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=cls)


def commands_address(folder: Path) -> str:
    """Where the front's commands go; the engine binds it."""
    return f"ipc://{folder / 'commands'}"


def messages_address(folder: Path) -> str:
    """Where the engine's messages go; the front binds it."""
    return f"ipc://{folder / 'messages'}"
