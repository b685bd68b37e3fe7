"""The default model as a Hugging Face folder, which other engines read."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from looseleaf.models.loader import load_model
from looseleaf.models.store import resolve_model
from looseleaf.models.weights import destinations


def export_default_model() -> Path:
    """Beside the cached model; written once. Weights in bfloat16, as the golden tokens were made."""
    source = resolve_model("smollm2-135m").path
    folder = source.parent / "exported-hf"
    if (folder / "config.json").exists():
        return folder
    model, config = load_model(source, torch.bfloat16)
    folder.mkdir(exist_ok=True)
    save_file(
        {name: weight.contiguous() for name, weight in destinations(model).items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    settings = {
        "architectures": [config.architecture],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(settings, indent=2))  # last: its presence says that all is there
    return folder
