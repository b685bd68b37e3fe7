"""From a step's plan to the tensors that the model reads, with a handful of NumPy calls per step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from looseleaf.engine.seats import Seats
from looseleaf.kernels.interface import AttentionBatch, Cascade
from looseleaf.memory.interface import ROW_MASK, KVMemory
from looseleaf.scheduler.interface import StepPlan


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """One step as the model sees it: all scheduled sequences' query tokens, end to end."""

    token_ids: Tensor
    """int64 `[num_tokens]`"""
    positions: Tensor
    """int64 `[num_tokens]`"""
    attention: AttentionBatch
    query_starts: NDArray[np.int32]
    """First query row of each scheduled sequence, `[num_seqs + 1]`."""
    adapters: Tensor | None
    """The adapter of each token, int64 `[num_tokens]`, -1 for none; None: nobody has one."""


def build_batch(plan: StepPlan, seats: Seats, memory: KVMemory, cascade: Cascade = "auto") -> ModelBatch:
    """Gather what `plan` schedules. Block tables and lengths are read where the memory manager keeps them."""
    rows = plan.seq_ids & ROW_MASK
    sitting = seats.of(plan.seq_ids)
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(plan.num_scheduled, out=starts[1:])
    owner = np.repeat(np.arange(len(rows)), plan.num_scheduled)
    positions = np.arange(starts[-1]) - (starts[:-1] - plan.num_computed)[owner]

    context_lens = plan.num_computed + plan.num_scheduled
    block_size = memory.block_size
    tables = memory.block_tables
    slots = tables[rows[owner], positions // block_size].astype(np.int64) * block_size + positions % block_size
    adapters = seats.adapters_of(sitting)
    width = -(-int(context_lens.max()) // block_size)
    return ModelBatch(
        token_ids=torch.from_numpy(seats.tokens[sitting[owner], positions].astype(np.int64)),
        positions=torch.from_numpy(positions),
        attention=AttentionBatch(
            block_tables=torch.from_numpy(tables[rows, :width]),
            context_lens=torch.from_numpy(context_lens.astype(np.int32)),
            query_starts=torch.from_numpy(starts),
            slots=torch.from_numpy(slots),
            num_decodes=plan.num_decodes,
            cascade=cascade,
        ),
        query_starts=starts,
        adapters=None if adapters is None else torch.from_numpy(adapters[owner]),
    )
