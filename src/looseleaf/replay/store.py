"""Finished replays in a folder, each under a digest of all that it follows from."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path

from looseleaf.errors import ConfigurationError
from looseleaf.replay.cost import StepCost
from looseleaf.replay.outcome import Outcome
from looseleaf.replay.result import ReplayResult
from looseleaf.replay.settings import Settings
from looseleaf.replay.sources import digest_of

CODE = ("memory", "scheduler", "plan", "replay", "replay/readers", "replay/generators")
"""Folders of what decides a result: when it changes, older results are not taken up."""
AFTERWARDS = {
    "blind_spots",
    "extent",
    "goodput",
    "matrix",
    "outcome",
    "settings",
    "smallest_pool",
    "sources",
    "store",
    "table",
}
"""Modules of it that only choose replays or look at their results."""


@dataclass(frozen=True, slots=True)
class ResultStore:
    """`folder`/`key`/ holds what `Outcome.write` writes; it appears whole or not at all."""

    folder: Path

    def key(self, identity: object, settings: Settings, cost: StepCost, *, keep_requests: bool = True) -> str:
        """`identity`: of the trace, see `TraceSource.identity`."""
        return digest_of([identity, settings.as_dict(), cost.describe(), keep_requests, code_digest()])

    def has(self, key: str) -> bool:
        return (self.folder / key).is_dir()

    def load(self, key: str) -> Outcome | None:
        """None if it is not there; what is damaged is removed."""
        place = self.folder / key
        if not place.is_dir():
            return None
        try:
            return Outcome.read(place)
        except Exception:  # whatever the readers of damaged files raise
            shutil.rmtree(place, ignore_errors=True)
            return None

    def save(self, key: str, result: ReplayResult) -> None:
        """Raises `ConfigurationError` if the folder cannot be written to."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            place = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=self.folder))
            try:
                Outcome.write(result, place)
                place.chmod(0o755)
                shutil.rmtree(self.folder / key, ignore_errors=True)
                place.rename(self.folder / key)
            except BaseException:
                shutil.rmtree(place, ignore_errors=True)
                raise
        except OSError as error:
            raise ConfigurationError(
                f"The result cannot be kept in {self.folder}: {error.strerror or error}.",
                hint="Name another folder with --results.",
            ) from error


def default_folder() -> Path:
    """`$LOOSELEAF_CACHE`/replay, else looseleaf/replay in the user's cache folder."""
    if folder := os.environ.get("LOOSELEAF_CACHE"):
        return Path(folder) / "replay"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "looseleaf" / "replay"


@cache
def code_digest() -> str:
    root = Path(__file__).parents[1]
    content = blake2b(digest_size=16)
    for file in sorted(file for folder in CODE for file in (root / folder).glob("*.py") if file.stem not in AFTERWARDS):
        content.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes())
    return content.hexdigest()
