"""Where the model lies in what a user points at: a GGUF file, or a folder in Hugging Face's layout."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from looseleaf.models.errors import ModelNotFound


def find_model(path: Path) -> Path:
    """The GGUF file that `path` is or holds, else the folder `path` itself.

    A folder with config.json is one of Hugging Face's layout, unless its only weights are a GGUF file. Raises
    `ModelNotFound`: nothing there, nothing that is a model, several GGUF files, or no permission to look.
    """
    try:
        if path.is_file():
            return path
        if not path.is_dir():
            raise ModelNotFound(f"There is no file or folder {path}.")
        has_config = (path / "config.json").is_file()
        files = sorted(path.glob("*.gguf"))
        has_safetensors = any(path.glob("*.safetensors*"))
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}.") from error
    if has_config and (has_safetensors or not files):
        return path
    if not files:
        raise ModelNotFound(f"{path} is not a model folder: it holds neither config.json nor a .gguf file.")
    if len(files) > 1:
        raise ModelNotFound(
            f"{path} holds {len(files)} GGUF files: {', '.join(file.name for file in files[:5])}.",
            hint="Name the one to load.",
        )
    return files[0]


def files_revision(path: Path) -> str:
    """Changes when a file of the model does: a hash of their names, sizes and times, not of all their bytes."""
    files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file())
    described = [(each.name, (status := each.stat()).st_size, status.st_mtime_ns) for each in files]
    return blake2b(repr((str(path.resolve()), described)).encode(), digest_size=16).hexdigest()
