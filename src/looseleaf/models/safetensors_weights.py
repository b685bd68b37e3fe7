"""Weights of a Hugging Face folder: one safetensors file, or shards under an index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from looseleaf.models.errors import CorruptModelFile, ModelNotFound, UnsupportedModel
from looseleaf.models.json_file import read_json_object

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")


class SafetensorsWeights:
    """Raises `ModelNotFound` when files are absent, `CorruptModelFile` when one cannot be read, and
    `UnsupportedModel` for tensors that are not floating-point; all of it on construction."""

    def __init__(self, folder: Path) -> None:
        self._files = _files(folder)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._file_of: dict[str, Path] = {}
        self._bfloat16: set[str] = set()
        for path in self._files:
            self._take_inventory(path)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def fits_bfloat16(self, name: str) -> bool:
        return name in self._bfloat16

    def read_into(self, name: str, destination: Tensor) -> None:
        path = self._file_of[name]
        try:
            with safe_open(path, framework="pt") as file:
                destination.copy_(file.get_tensor(name))
        except (SafetensorError, OSError) as error:
            raise _corrupt(path, error) from error

    def _take_inventory(self, path: Path) -> None:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - a safetensors handle, not a mapping
                    if name in self._shapes:
                        raise CorruptModelFile(f"{name} is in both {self._file_of[name].name} and {path.name}.")
                    part = file.get_slice(name)
                    if part.get_dtype() not in _FLOATS:
                        raise UnsupportedModel(
                            f"{name} is stored as {part.get_dtype()}.", hint=f"Known: {', '.join(_FLOATS)}."
                        )
                    if part.get_dtype() == "BF16":
                        self._bfloat16.add(name)
                    self._shapes[name] = tuple(part.get_shape())
                    self._file_of[name] = path
        except (SafetensorError, OSError) as error:
            raise _corrupt(path, error) from error


def _files(folder: Path) -> list[Path]:
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if not (folder / _INDEX).is_file():
        pickled = any(folder.glob("*.bin"))
        raise ModelNotFound(
            f"{folder} holds no {_SINGLE} and no {_INDEX}.",
            hint="Pickled weights (*.bin) can run code when read and are refused; convert them to safetensors."
            if pickled
            else "The folder must hold the model's weights beside its configuration.",
        )
    weight_map = read_json_object(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CorruptModelFile(f"{folder / _INDEX} has no weight_map from tensor names to file names.")
    names = sorted(set(weight_map.values()))
    for name in names:
        if Path(name).name != name:
            raise CorruptModelFile(f"{folder / _INDEX} points outside the folder: {name!r}.")
        if not (folder / name).is_file():
            raise ModelNotFound(f"{folder} lacks {name}, one of {len(names)} shards.", hint="Download it again.")
    return [folder / name for name in names]


def _corrupt(path: Path, error: Exception) -> CorruptModelFile:
    return CorruptModelFile(f"{path} cannot be read: {error}.", hint="It is truncated or damaged; download it again.")
