"""A decode step of the default model with LoRA adapters, beside the same step without.

    python benchmarks/bench_lora.py [--batch 16] [--context 512] [--adapters 1 4 16] [--ranks 8 16]
                                    [--dtype bfloat16] [--rounds 15] [--threads N] [--cpu-time]

Adapters are random, on all seven projections of every layer, and take turns over the rows of the batch; steps of each
kind take turns. Ratios are medians over the rounds, with quartiles. `read` is how many bytes more a step reads, of
those that it reads without (weights and KV): what reading alone would cost. `loaded, none asked for` is a step in
which no row has an adapter, in a model that has them. On a machine with other work, --cpu-time counts the time of
one thread alone.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
import torch

from bench_step import decode_batch
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.llm import load_engine
from looseleaf.kernels.sampling import most_likely
from looseleaf.models.config import ModelConfig
from looseleaf.models.lora import LoraAdapter, LoraMatrices
from looseleaf.models.native_decoder import NativeCausalLM


def random_adapter(model: ModelConfig, rank: int, dtype: torch.dtype, seed: int) -> LoraAdapter:
    """On all projections; small numbers, as a trained one has."""
    generator = torch.Generator().manual_seed(seed)
    queries, kv = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    hidden, inner = model.hidden_size, model.intermediate_size
    sizes = {
        "q_proj": (queries, hidden),
        "k_proj": (kv, hidden),
        "v_proj": (kv, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }

    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).mul(0.02).to(dtype)

    return LoraAdapter(
        tuple(
            {name: LoraMatrices(matrix(rank, i), matrix(o, rank), 2.0) for name, (o, i) in sizes.items()}
            for _ in range(model.num_layers)
        )
    )


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--adapters", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16", help="of the adapters")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    clock = time.perf_counter
    if options.cpu_time:
        clock, options.threads = time.process_time, 1
    if options.threads:
        torch.set_num_threads(options.threads)
    config = EngineConfig(
        kv_cache_memory=int(options.batch * (options.context + 16) * 46_080) + (1 << 24),
        max_num_seqs=options.batch,
        max_model_len=options.context,
    )
    engine = load_engine(config=config)
    model = engine.model
    if not isinstance(model, NativeCausalLM):
        sys.exit("the native extension is missing: there is no native step to measure")
    read = model.nbytes + options.batch * options.context * engine.pool.bytes_per_token
    token_ids, positions, attention = decode_batch(engine, options.batch, options.context)

    def step(rows: torch.Tensor | None) -> float:
        start = clock()
        hidden = model.forward(token_ids, positions, engine.kv_cache, attention, None, rows)
        most_likely(model.logits(hidden), np.arange(options.batch))
        return (clock() - start) * 1e3

    before = [step(None) for _ in range(options.rounds)]
    kinds: dict[str, torch.Tensor | None] = {"loaded, none asked for": torch.full((options.batch,), -1)}
    more: dict[str, int] = {}
    for rank in options.ranks:
        first, size = len(model.adapters), 0
        for seed in range(max(options.adapters)):
            adapter = random_adapter(model.config, rank, getattr(torch, options.dtype), seed)
            model.add_adapter(f"rank {rank}, {seed}", adapter)
            size = adapter.nbytes
        for count in options.adapters:
            name = f"{count} of rank {rank}"
            kinds[name] = first + torch.arange(options.batch) % count
            more[name] = min(count, options.batch) * size
    times: dict[str, list[float]] = {name: [] for name in kinds}
    plain = []
    for turn in range(options.rounds + 2):
        nothing = step(None)
        for name, rows in kinds.items():
            taken = step(rows)
            if turn >= 2:
                times[name].append(taken)
        if turn >= 2:
            plain.append(nothing)
    print(
        f"batch {options.batch}, context {options.context}, adapters in {options.dtype}, {torch.get_num_threads()} "
        f"thread(s): a step without adapters takes {np.median(plain):.2f} ms "
        f"({np.median(before):.2f} before any was loaded)"
    )
    for name, measured in times.items():
        ratios = np.array(measured) / np.array(plain)
        low, middle, high = np.percentile(ratios, [25, 50, 75])
        extra = f", read {more[name] / read:+.0%}" if name in more else ""
        print(f"  {name}: {middle:.3f} times ({low:.3f}–{high:.3f}){extra}")


if __name__ == "__main__":
    main()
