"""Real request traces through the prefix cache, and a naive cache that knows nothing of blocks and tables beside it."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory import BlockManager, Prefix
from looseleaf.replay.trace import read_trace

TRACES = Path(os.environ.get("LOOSELEAF_SHARED", Path(__file__).parents[2] / "shared")) / "traces"
UNBOUNDED = 60_000
"""Blocks: more than any of these traces ever fills."""


class Trace(NamedTuple):
    """What is known of a trace: block size, and by number of blocks the share of prompt tokens found in the cache
    (full blocks, the last prompt token never, the whole trace), in percent."""

    file: str
    block_size: int
    known: dict[int, float]


KNOWN = (
    Trace(
        "mooncake_conversation_first1000.jsonl.gz", 512, {256: 3.7, 1024: 3.9, 4096: 8.3, 16384: 20.3, UNBOUNDED: 21.6}
    ),
    Trace("miniswe_bs16.jsonl.gz", 16, {512: 64.9, 2588: 93.2, UNBOUNDED: 93.4}),
)


def read_prompts(trace: Trace) -> list[tuple[int, NDArray[np.int32]]]:
    """Lengths and tokens of the prompts, session after session: so the known figures were counted."""
    requests = list(read_trace(TRACES / trace.file).requests())
    turn = {session: i for i, session in enumerate(dict.fromkeys(request.session for request in requests))}
    requests.sort(key=lambda request: turn[request.session])
    return [(len(tokens), tokens) for request in requests if (tokens := request.token_ids()) is not None]


def naive_hit_rate(trace: Trace, capacity: int) -> float:
    """A dictionary of block ids in the order of their last use, a prompt's end before its beginning."""
    used: OrderedDict[int, None] = OrderedDict()
    asked = found = 0
    for length, tokens in read_prompts(trace):
        blocks = tokens[:: trace.block_size].tolist()  # a block's first token stands for it and all before it
        servable = blocks[: (length - 1) // trace.block_size]
        hits = next((i for i, block in enumerate(servable) if block not in used), len(servable))
        asked += length
        found += hits * trace.block_size
        for block in reversed(blocks[: length // trace.block_size]):
            used[block] = None
            used.move_to_end(block)
        while len(used) > capacity:
            used.popitem(last=False)
    return found / asked


def hit_rate(trace: Trace, capacity: int) -> float:
    """The same of `BlockManager`: requests one after another, each registered and released. A prompt larger than the
    pool is cut to it, but counts whole."""
    size = trace.block_size
    memory = BlockManager(capacity, size, max_num_seqs=1)
    asked = found = 0
    for length, prompt in read_prompts(trace):
        tokens = prompt[: capacity * size]
        memory.step += 1
        admission = memory.admit_prefix(Prefix(tokens))
        memory.register(admission.seq, tokens, len(tokens))
        memory.fill(np.array([admission.seq]), len(tokens) - admission.num_cached)
        memory.release(admission.seq)
        asked += length
        found += admission.num_cached // size * size
    memory.audit()
    return found / asked
