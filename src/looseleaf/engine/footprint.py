"""How much memory an engine may take beyond its weights and its pool."""

from __future__ import annotations

import torch

from looseleaf.engine.config import EngineConfig, format_bytes
from looseleaf.engine.kv_pool import PoolSize
from looseleaf.engine.row_copies import SLICE_ELEMENTS
from looseleaf.errors import ConfigurationError
from looseleaf.kernels import native
from looseleaf.kernels.reference import PARTITION_TOKENS, PARTITIONS_AT_ONCE
from looseleaf.models.config import ModelConfig

FLOAT32 = 4

ALLOCATOR_FACTOR = 2
"""What the C library keeps of freed tensors, and the buffers of torch's own products, on top of the tensors that are
alive: measured at up to 1.34 times the sum below (benchmarks/bench_footprint.py)."""

NATIVE_MLP_ROWS, NATIVE_LINEAR_ROWS, NATIVE_QUERY_ROWS, NATIVE_LORA_ROWS = 512, 512, 48, 32
"""Rows that the native step works on at once: csrc/step/decoder.cpp, linear/linear.cpp, attention/work_items.cpp,
step/adapters.cpp."""

PROMPT_LOGPROB_ROWS = 32
"""Prompt positions whose logits are held at once; those of a whole prompt would be the largest tensor of all."""


def check_footprint(model: ModelConfig, config: EngineConfig, pool: PoolSize, free: int, lora_rank: int = 0) -> None:
    """Raise `ConfigurationError` if the pool and the largest step do not fit into `free` bytes together.

    `lora_rank`: the largest of an adapter; 0: there is none.
    """
    workspace = workspace_bound(model, config, pool.max_model_len, lora_rank)
    if pool.nbytes + workspace > free:
        raise ConfigurationError(
            f"The KV cache takes {format_bytes(pool.nbytes)} and one step up to {format_bytes(workspace)}, but only "
            f"{format_bytes(free)} are free.",
            hint="Give the KV cache less, or lower max_num_batched_tokens or max_model_len.",
        )


def workspace_bound(model: ModelConfig, config: EngineConfig, max_model_len: int, lora_rank: int = 0) -> int:
    """Bytes that one step can take at once, at its worst, beyond weights and pool."""
    # Logits, and beside them a slice of rows in the sampler: a copy, its softmax, and running sums in float64.
    rows = max(config.max_num_seqs, PROMPT_LOGPROB_ROWS)
    slice_rows = min(rows, max(SLICE_ELEMENTS // model.vocab_size, torch.get_num_threads(), 1))
    sampling = (rows + 5 * slice_rows) * model.vocab_size * FLOAT32
    # Token ids by seat, block tables and rotary angles (while they grow).
    tables = 2 * config.max_num_seqs * max_model_len * 4 + 4 * max_model_len * model.head_dim * FLOAT32
    if native.is_chosen():
        native_step = _native_bound(model, config, max_model_len) + _native_lora_bound(model, config, lora_rank)
        return ALLOCATOR_FACTOR * (tables + sampling) + native_step
    # In a 16-bit model the logits exist in 16 bits first.
    sampling += rows * model.vocab_size * FLOAT32
    # What the rows of one adapter read, in float32, and what is added to them.
    widest = 2 * max(model.hidden_size, model.num_heads * model.head_dim, model.intermediate_size) + lora_rank
    lora = 2 * config.max_num_batched_tokens * widest * FLOAT32 if lora_rank else 0
    return ALLOCATOR_FACTOR * (tables + lora + _reference_bound(model, config, max_model_len, sampling))


def _native_bound(model: ModelConfig, config: EngineConfig, max_model_len: int) -> int:
    """What the native step keeps from call to call, as it is allocated there, and the hidden states it returns."""
    tokens, threads = config.max_num_batched_tokens, torch.get_num_threads()
    queries = model.num_heads * model.head_dim
    keys_and_values = 2 * model.num_kv_heads * model.head_dim
    activations = tokens * (2 * model.hidden_size + 2 * queries + keys_and_values)
    inner = min(tokens, NATIVE_MLP_ROWS) * model.intermediate_size
    results = 2 * tokens * model.hidden_size  # with prompt logprobs, a copy of the sampled rows
    # Linear layers round or quantise some rows at once; int8 takes 8 bytes for each 32 numbers on top.
    widest = max(model.hidden_size, queries, model.intermediate_size) + 32
    prepared = NATIVE_LINEAR_ROWS * (widest + widest // 16)

    # Attention: scores of a block of query rows by thread, three rows of sums, and the sums of each partition where a
    # sequence is shared out; no more than four blocks per thread are.
    block = max(NATIVE_QUERY_ROWS, model.num_heads // model.num_kv_heads) + 16
    dim = model.head_dim + 16
    by_thread = block * (2 * PARTITION_TOKENS + 3 * dim + 16) + 4 * PARTITION_TOKENS * dim
    partitions = -(-max_model_len // PARTITION_TOKENS)
    partial = 4 * threads * partitions * block * (dim + 2)
    # Block tables of the wanted rows, when they are few runs of rows of the step.
    wanted = tokens * (-(-max_model_len // config.block_size) + 2)
    floats = activations + inner + results + prepared + threads * by_thread + partial + wanted
    return floats * FLOAT32


def _native_lora_bound(model: ModelConfig, config: EngineConfig, rank: int) -> int:
    """Gate and up side by side, and by thread some rows with what adapters make of them; see csrc/step/adapters.cpp."""
    if rank == 0:
        return 0
    queries, inner = model.num_heads * model.head_dim, model.intermediate_size
    rows = min(config.max_num_batched_tokens, NATIVE_MLP_ROWS)
    a_row = max(model.hidden_size, queries, inner) + 3 * rank
    by_thread = min(rows, NATIVE_LORA_ROWS) * a_row + 16
    floats = rows * 2 * (inner + 16) + torch.get_num_threads() * by_thread
    return floats * FLOAT32 + 3 * config.max_num_batched_tokens * 8


def _reference_bound(model: ModelConfig, config: EngineConfig, max_model_len: int, sampling: int) -> int:
    """The largest of three moments, each at its worst: inside the MLP, inside attention, and sampling."""
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
    return stream + gathered * kv_row + max(mlp, attention, sampling)
