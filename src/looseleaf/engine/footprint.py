"""How much memory an engine may take beyond its weights and its pool."""

from __future__ import annotations

from looseleaf.engine.config import EngineConfig
from looseleaf.kernels.reference import PARTITION_TOKENS, PARTITIONS_AT_ONCE
from looseleaf.models.config import ModelConfig

FLOAT32 = 4


def workspace_bound(model: ModelConfig, config: EngineConfig, max_model_len: int) -> int:
    """Bytes that the tensors of one step can take at once, with the reference kernels.

    The largest of three moments, each at its worst: inside the MLP, inside attention, and sampling.
    """
    element = config.torch_dtype.itemsize
    tokens = config.max_num_batched_tokens
    # The residual, its float32 copy and norm, and the layer's output live beside whatever is computed.
    stream = tokens * model.hidden_size * (2 * element + 2 * FLOAT32)
    mlp = tokens * 3 * model.intermediate_size * element

    heads = model.num_heads + 2 * model.num_kv_heads
    projections = 2 * tokens * heads * model.head_dim * (element + FLOAT32)
    # A chunk attends to its whole context at once, through a mask that torch widens from bool to float32.
    mask = min(tokens, max_model_len) * max_model_len * (1 + FLOAT32)
    partitions = config.max_num_seqs * -(-max_model_len // PARTITION_TOKENS)
    partial_results = partitions * model.num_heads * (model.head_dim + 2) * FLOAT32
    attention = projections + max(mask, partial_results)

    # Gathered keys and values, kept between calls: a whole context, or the partitions that are read at once.
    kv_row = 2 * model.num_kv_heads * model.head_dim * (element + FLOAT32)
    gathered = max(max_model_len, PARTITIONS_AT_ONCE * PARTITION_TOKENS) + config.block_size
    # Logits, their float32 copy in a 16-bit model, and the sampler's working copy of the rows that it edits.
    sampling = 3 * config.max_num_seqs * model.vocab_size * FLOAT32
    return stream + gathered * kv_row + max(mlp, attention, sampling)
