"""The shape of the model in a GGUF file, for the planner, which reads configurations only."""

from __future__ import annotations

from pathlib import Path

from looseleaf.models.gguf_config import config_from_gguf
from looseleaf.models.gguf_file import GGUFFile
from looseleaf.plan.model_config import read_model
from looseleaf.plan.shape import ModelShape

_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def read_gguf_shape(path: Path) -> tuple[ModelShape, int]:
    """The model, and the bytes of its tensors as they are stored. Raises what opening the file raises."""
    file = GGUFFile(path)
    config = config_from_gguf(file)
    windows = {window for window in config.sliding_windows if window is not None}
    shape = read_model(
        {
            "architectures": [config.architecture],
            "model_type": _MODEL_TYPES.get(config.architecture, config.architecture),
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "vocab_size": config.vocab_size,
            "max_position_embeddings": config.max_position_embeddings,
            "tie_word_embeddings": config.tie_word_embeddings,
            "attention_bias": config.attention_output_bias,
            "mlp_bias": config.mlp_bias,
            "sliding_window": windows.pop() if windows else None,
            "use_sliding_window": bool(config.sliding_windows and any(config.sliding_windows)),
            "max_window_layers": 0,
            "torch_dtype": "bfloat16",
        },
        name=path.name,
    )
    return shape, sum(tensor.data.nbytes for tensor in file.tensors.values())
