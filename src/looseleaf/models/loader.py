"""From a path to a model that runs."""

from __future__ import annotations

from pathlib import Path

import torch

from looseleaf.kernels import native
from looseleaf.models.config import ModelConfig
from looseleaf.models.decoder import CausalLM
from looseleaf.models.errors import UnsupportedModel
from looseleaf.models.gguf_config import config_from_gguf
from looseleaf.models.gguf_file import GGUFFile
from looseleaf.models.gguf_weights import GGUFWeights
from looseleaf.models.hf_config import config_from_hf
from looseleaf.models.interface import Decoder
from looseleaf.models.json_file import read_json_object
from looseleaf.models.model_files import find_model
from looseleaf.models.safetensors_weights import SafetensorsWeights
from looseleaf.models.tokenizer import Tokenizer
from looseleaf.models.weights import WeightSource, load_native_weights, load_weights

_DTYPES = (torch.float32, torch.bfloat16)


def load_config(path: Path) -> ModelConfig:
    """The configuration of the model at `path`, without its weights. Raises as `load_model` does."""
    found = find_model(path)
    return _folder_config(found) if found.is_dir() else config_from_gguf(GGUFFile(found))


def load_model(path: Path, dtype: torch.dtype) -> tuple[CausalLM, ModelConfig]:
    """Load a Hugging Face folder (config.json and safetensors), a GGUF file, or a folder with exactly one.

    Weights are held and computed in `dtype` (float32 or bfloat16), whatever the file stores. Raises a
    `ModelError`: `ModelNotFound`, `CorruptModelFile`, `InvalidModelConfig`, `UnsupportedModel` or
    `WeightsMismatch`.
    """
    _check_dtype(dtype)
    found = find_model(path)
    model = _from_folder(found, dtype) if found.is_dir() else _from_gguf(GGUFFile(found), dtype)
    return model, model.config


def load_decoder_and_tokenizer(path: Path, dtype: torch.dtype, quantization: str = "none") -> tuple[Decoder, Tokenizer]:
    """The model as the native decoder where that is in use, else as `load_model` gives it; and its tokenizer.

    A GGUF file is read once for both. `quantization`: see `NativeCausalLM`.
    """
    _check_dtype(dtype)
    found = find_model(path)
    if quantization != "none" and not native.is_chosen():
        raise UnsupportedModel(
            f"quantization {quantization} needs the native kernels, which are not in use.",
            hint="Build the extension and do not set LOOSELEAF_KERNELS=reference, or use quantization none.",
        )
    source: WeightSource
    if found.is_dir():
        tokenizer = Tokenizer.from_folder(found)  # before the weights: it fails sooner
        config, source = _folder_config(found), SafetensorsWeights(found)
    else:
        file = GGUFFile(found)
        tokenizer = Tokenizer.from_gguf(file)
        config = config_from_gguf(file)
        source = GGUFWeights(file, config)
    if native.is_chosen():
        return load_native_weights(config, dtype, source, quantization), tokenizer
    return load_weights(config, dtype, source), tokenizer


def _from_folder(folder: Path, dtype: torch.dtype) -> CausalLM:
    return load_weights(_folder_config(folder), dtype, SafetensorsWeights(folder))


def _from_gguf(file: GGUFFile, dtype: torch.dtype) -> CausalLM:
    config = config_from_gguf(file)
    return load_weights(config, dtype, GGUFWeights(file, config))


def _folder_config(folder: Path) -> ModelConfig:
    return config_from_hf(read_json_object(folder / "config.json"))


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in _DTYPES:
        raise UnsupportedModel(f"The dtype {dtype} is not supported.", hint="Known: float32, bfloat16.")
