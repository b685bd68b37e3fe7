"""From a path to a model that runs."""

from __future__ import annotations

from pathlib import Path

import torch

from looseleaf.models.config import ModelConfig
from looseleaf.models.decoder import CausalLM
from looseleaf.models.errors import ModelNotFound, UnsupportedModel
from looseleaf.models.gguf_config import config_from_gguf
from looseleaf.models.gguf_file import GGUFFile
from looseleaf.models.gguf_weights import GGUFWeights
from looseleaf.models.hf_config import config_from_hf
from looseleaf.models.json_file import read_json_object
from looseleaf.models.safetensors_weights import SafetensorsWeights
from looseleaf.models.weights import load_weights

_DTYPES = (torch.float32, torch.bfloat16)


def load_config(path: Path) -> ModelConfig:
    """The configuration of the model at `path`, without its weights. Raises as `load_model` does."""
    gguf = _gguf_file(path)
    return config_from_hf(read_json_object(path / "config.json")) if gguf is None else config_from_gguf(GGUFFile(gguf))


def load_model(path: Path, dtype: torch.dtype) -> tuple[CausalLM, ModelConfig]:
    """Load a Hugging Face folder (config.json and safetensors), a GGUF file, or a folder with exactly one.

    Weights are held and computed in `dtype` (float32 or bfloat16), whatever the file stores. Raises a
    `ModelError`: `ModelNotFound`, `CorruptModelFile`, `InvalidModelConfig`, `UnsupportedModel` or
    `WeightsMismatch`.
    """
    if dtype not in _DTYPES:
        raise UnsupportedModel(f"The dtype {dtype} is not supported.", hint="Known: float32, bfloat16.")
    gguf = _gguf_file(path)
    if gguf is None:
        config = config_from_hf(read_json_object(path / "config.json"))
        return load_weights(config, dtype, SafetensorsWeights(path)), config
    file = GGUFFile(gguf)
    config = config_from_gguf(file)
    return load_weights(config, dtype, GGUFWeights(file, config)), config


def _gguf_file(path: Path) -> Path | None:
    """The GGUF file that `path` is or holds; None for a Hugging Face folder."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise ModelNotFound(f"There is no file or folder {path}.")
    if (path / "config.json").is_file():
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    if files:
        raise ModelNotFound(
            f"{path} holds {len(files)} GGUF files: {', '.join(file.name for file in files[:5])}.",
            hint="Name the one to load.",
        )
    raise ModelNotFound(f"{path} is not a model folder: it holds neither config.json nor a .gguf file.")
