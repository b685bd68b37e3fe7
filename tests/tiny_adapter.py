"""Random LoRA adapters in the files that peft writes, for models of any small size."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from looseleaf.models.config import ModelConfig
from looseleaf.models.lora import CONFIG_FILE, WEIGHTS_FILE
from looseleaf.models.lora_config import PROJECTIONS, module_name


def projection_sizes(model: ModelConfig, projection: str) -> tuple[int, int]:
    """Outputs and inputs."""
    queries, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    outputs = {"q_proj": queries, "k_proj": kv, "v_proj": kv, "gate_proj": model.intermediate_size}
    outputs["up_proj"] = model.intermediate_size
    inputs = {"o_proj": queries, "down_proj": model.intermediate_size}
    return outputs.get(projection, model.hidden_size), inputs.get(projection, model.hidden_size)


def write_adapter(
    folder: Path,
    model: ModelConfig,
    *,
    seed: int = 0,
    projections: Sequence[str] = tuple(PROJECTIONS),
    layers: Sequence[int] | None = None,
    rank: int = 4,
    alpha: float = 8,
    dtype: torch.dtype = torch.float32,
    settings: dict[str, Any] | None = None,
    change: Callable[[dict[str, Tensor]], object] = lambda _: None,
) -> Path:
    """`settings` overwrite those of the configuration; `change` may do what it likes to the tensors."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(model.num_layers) if layers is None else layers:
        for projection in projections:
            outputs, inputs = projection_sizes(model, projection)
            name = f"base_model.model.{module_name(layer, projection)}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator).mul(0.2).to(dtype)
            tensors[f"{name}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator).mul(0.2).to(dtype)
    change(tensors)
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(projections),
        "layers_to_transform": None if layers is None else list(layers),
        "bias": "none",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text(json.dumps(config | (settings or {})))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS_FILE)
    return folder
