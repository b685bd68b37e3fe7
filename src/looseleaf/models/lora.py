"""LoRA adapters (Hu et al. 2021, arXiv:2106.09685) as peft stores them: y += scaling · (x · Aᵀ) · Bᵀ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import functional

from looseleaf.models.config import ModelConfig
from looseleaf.models.errors import CorruptModelFile, InvalidAdapter, ModelNotFound, UnsupportedAdapter
from looseleaf.models.json_file import read_json_object
from looseleaf.models.lora_config import PROJECTIONS, LoraConfig, module_name, read_lora_config

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"

_PREFIX = "base_model.model."
_FLOATS = ("F64", "F32", "F16", "BF16")
_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class LoraMatrices:
    """What an adapter adds to one matrix of the model, `[outputs, inputs]`."""

    a: Tensor
    """`[rank, inputs]`, float32 or bfloat16."""
    b: Tensor
    """`[outputs, rank]`, float32 or bfloat16."""
    scaling: float

    def added(self, x: Tensor) -> Tensor:
        """What comes to `x` (`[T, inputs]`) times the matrix: float32 `[T, outputs]`."""
        return functional.linear(functional.linear(x.float(), self.a.float()) * self.scaling, self.b.float())


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """One adapter, fitted to a model: for each layer, the projections (`PROJECTIONS`) that it changes."""

    layers: tuple[Mapping[str, LoraMatrices], ...]

    @property
    def nbytes(self) -> int:
        return sum(each.a.nbytes + each.b.nbytes for layer in self.layers for each in layer.values())

    @property
    def max_rank(self) -> int:
        """The largest rank of a matrix; 0 if it changes none."""
        return max((len(each.a) for layer in self.layers for each in layer.values()), default=0)


def load_lora(folder: Path, model: ModelConfig) -> LoraAdapter:
    """Read a folder that peft saved, and check it against the model that it is to change.

    Raises `ModelNotFound` or `CorruptModelFile` for files that are absent or broken, `UnsupportedAdapter` for what
    would need more than low-rank products on the projections, and `InvalidAdapter` for tensors that are missing,
    unknown, not finite or of another shape than configuration and model make them.
    """
    if not folder.is_dir():
        raise ModelNotFound(f"There is no adapter folder {folder}.", hint="Pass the folder that peft saved.")
    config = read_lora_config(read_json_object(folder / CONFIG_FILE), model.num_layers)
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        raise ModelNotFound(
            f"{folder} holds no {WEIGHTS_FILE}.",
            hint="Pickled weights can run code when read and are refused; convert them to safetensors."
            if pickled
            else "Pass the folder that peft saved.",
        )
    try:
        with safe_open(path, framework="pt") as file:
            names = set(file.keys())
            for name in names:
                if (stored := file.get_slice(name).get_dtype()) not in _FLOATS:
                    raise UnsupportedAdapter(f"{name} is stored as {stored}.", hint=f"Known: {', '.join(_FLOATS)}.")
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
            places = _places(config, model, shapes)
            tensors = {name: _narrowest(file.get_tensor(name)) for pair in places.values() for name in pair}
    except (SafetensorError, OSError) as error:
        raise CorruptModelFile(
            f"{path} cannot be read: {error}.", hint="It is truncated or damaged; copy it again."
        ) from error
    if odd := sorted(name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())):
        raise InvalidAdapter(f"The adapter has numbers that are not finite: in {_some(odd)}.")
    layers: list[dict[str, LoraMatrices]] = [{} for _ in range(model.num_layers)]
    for (layer, projection), (a, b) in places.items():
        scaling = config.scaling_of(module_name(layer, projection))
        layers[layer][projection] = LoraMatrices(tensors[a], tensors[b], scaling)
    return LoraAdapter(tuple(layers))


def _places(
    config: LoraConfig, model: ModelConfig, shapes: Mapping[str, tuple[int, ...]]
) -> dict[tuple[int, str], tuple[str, str]]:
    """The names of A and B by layer and projection, after the whole inventory has been checked."""
    places: dict[tuple[int, str], tuple[str, str]] = {}
    expected: dict[str, tuple[int, ...]] = {}
    missing: list[str] = []
    sizes = _sizes(model)
    for layer in range(model.num_layers):
        for projection in PROJECTIONS:
            module = module_name(layer, projection)
            pair = (f"{_PREFIX}{module}.lora_A.weight", f"{_PREFIX}{module}.lora_B.weight")
            there = [name for name in pair if name in shapes]
            if not config.may_adapt(module, layer) or not (there or config.must_adapt(module, layer)):
                continue
            missing += (name for name in pair if name not in there)
            places[layer, projection] = pair
            inputs, outputs = sizes[projection]
            rank = config.rank_of(module)
            expected |= {pair[0]: (rank, inputs), pair[1]: (outputs, rank)}
    if unknown := sorted(shapes.keys() - expected.keys()):
        _refuse_unknown(unknown)
    problems = [f"missing: {_some(missing)}"] if missing else []
    problems += (
        f"{name} is {list(shapes[name])} where configuration and model make it {list(shape)}"
        for name, shape in expected.items()
        if name in shapes and shapes[name] != shape
    )
    if problems:
        more = f"; and {len(problems) - _NAMES_SHOWN} more" if len(problems) > _NAMES_SHOWN else ""
        raise InvalidAdapter(
            f"The adapter does not fit the model: {'; '.join(problems[:_NAMES_SHOWN])}{more}.",
            hint="It belongs to another model, or its configuration and its weights to two adapters.",
        )
    if not places:
        raise InvalidAdapter("The adapter has no weights for any matrix of the model.")
    return places


def _refuse_unknown(names: list[str]) -> None:
    for mark, what in (
        ("lora_magnitude_vector", "DoRA"),
        ("lora_embedding_", "an adapted embedding"),
        ("modules_to_save", "modules_to_save"),
        (".bias", "biases"),
        ("embed_tokens", "the embedding"),
        ("lm_head", "the output matrix"),
    ):
        if found := [name for name in names if mark in name]:
            raise UnsupportedAdapter(f"The adapter's file holds {what}, which is not supported: {_some(found)}.")
    raise InvalidAdapter(
        f"The adapter's file has tensors that neither its configuration nor the model knows: {_some(names)}.",
        hint=f"Known are lora_A and lora_B of {', '.join(PROJECTIONS)}, as far as the configuration names them.",
    )


def _sizes(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each projection."""
    queries, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    hidden, inner = model.hidden_size, model.intermediate_size
    return {
        "q_proj": (hidden, queries),
        "k_proj": (hidden, kv),
        "v_proj": (hidden, kv),
        "o_proj": (queries, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }


def _narrowest(tensor: Tensor) -> Tensor:
    """In bfloat16 where that holds every number, else in float32."""
    wide = tensor.to(torch.float32)
    narrow = wide.to(torch.bfloat16)
    return narrow if torch.equal(narrow.float(), wide) else wide


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more
