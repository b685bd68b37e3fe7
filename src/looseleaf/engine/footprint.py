"""How much memory an engine may take beyond its weights and its pool."""

from __future__ import annotations

import torch

from looseleaf.engine.config import EngineConfig, format_bytes
from looseleaf.engine.kv_pool import PoolSize
from looseleaf.engine.row_copies import SLICE_ELEMENTS
from looseleaf.errors import ConfigurationError
from looseleaf.kernels.reference import PARTITION_TOKENS, PARTITIONS_AT_ONCE
from looseleaf.models.config import ModelConfig

FLOAT32 = 4

ALLOCATOR_FACTOR = 2
"""What the C library keeps of freed tensors, and the buffers of torch's own products, on top of the tensors that are
alive: measured at up to 1.34 times the sum below (benchmarks/bench_footprint.py)."""

PROMPT_LOGPROB_ROWS = 32
"""Prompt positions whose logits are held at once; those of a whole prompt would be the largest tensor of all."""


def check_footprint(model: ModelConfig, config: EngineConfig, pool: PoolSize, free: int) -> None:
    """Raise `ConfigurationError` if the pool and the largest step do not fit into `free` bytes together."""
    workspace = workspace_bound(model, config, pool.max_model_len)
    if pool.nbytes + workspace > free:
        raise ConfigurationError(
            f"The KV cache takes {format_bytes(pool.nbytes)} and one step up to {format_bytes(workspace)}, but only "
            f"{format_bytes(free)} are free.",
            hint="Give the KV cache less, or lower max_num_batched_tokens or max_model_len.",
        )


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
    gathered = max(max_model_len, PARTITIONS_AT_ONCE * max(PARTITION_TOKENS, config.block_size)) + config.block_size
    # Logits and their float32 copy in a 16-bit model; beside them a slice of rows in the sampler: a copy, its
    # softmax, and running sums in float64.
    rows = max(config.max_num_seqs, PROMPT_LOGPROB_ROWS)
    slice_rows = min(rows, max(SLICE_ELEMENTS // model.vocab_size, torch.get_num_threads(), 1))
    sampling = (2 * rows + 5 * slice_rows) * model.vocab_size * FLOAT32
    # Token ids by seat, block tables and rotary angles (while they grow); the sums above are of one step, these stay.
    tables = 2 * config.max_num_seqs * max_model_len * 4 + 4 * max_model_len * model.head_dim * FLOAT32
    return ALLOCATOR_FACTOR * (tables + stream + gathered * kv_row + max(mlp, attention, sampling))
