"""Tiny random checkpoints of every family, and a driver that runs them through the paged cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from looseleaf.kernels.cpu import CpuKVCache
from looseleaf.kernels.interface import AttentionBatch
from looseleaf.kernels.reference import ReferenceKVCache
from looseleaf.models.interface import Decoder
from looseleaf.models.native_decoder import NativeCausalLM

VOCAB_SIZE = 96

_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32}

FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "llama2": (transformers.LlamaConfig, {"num_key_value_heads": 4, "tie_word_embeddings": False}),
    "llama3": (
        transformers.LlamaConfig,
        {"num_key_value_heads": 2, "tie_word_embeddings": False, "rope_parameters": _LLAMA3},
    ),
    "smollm2": (transformers.LlamaConfig, {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama-biases": (
        transformers.LlamaConfig,
        {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama-linear": (
        transformers.LlamaConfig,
        {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
    ),
    "llama-dynamic": (
        transformers.LlamaConfig,
        {"num_key_value_heads": 2, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}},
    ),
    "mistral": (transformers.MistralConfig, {"num_key_value_heads": 2, "sliding_window": 5}),
    "mistral-nemo": (
        transformers.MistralConfig,
        {"num_key_value_heads": 2, "head_dim": 32, "sliding_window": None},
    ),
    "qwen2": (transformers.Qwen2Config, {"num_key_value_heads": 2, "sliding_window": 5, "tie_word_embeddings": True}),
    "qwen2-window": (
        transformers.Qwen2Config,
        {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    ),
    "qwen2-yarn": (transformers.Qwen2Config, {"num_key_value_heads": 2, "rope_parameters": _YARN}),
    "qwen3": (transformers.Qwen3Config, {"num_key_value_heads": 2, "head_dim": 32, "tie_word_embeddings": True}),
    "qwen3-untied": (
        transformers.Qwen3Config,
        {"num_key_value_heads": 4, "head_dim": 8, "attention_bias": True, "tie_word_embeddings": False},
    ),
}


@dataclass(frozen=True)
class Checkpoint:
    """A model of transformers, the oracle, and the folder it was saved to."""

    family: str
    oracle: transformers.PreTrainedModel
    folder: Path

    def logits(self, tokens: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            return self.oracle(torch.tensor([list(tokens)])).logits[0]


def build_oracle(family: str, **overrides: Any) -> transformers.PreTrainedModel:
    """Weights large enough that every term of the network, norms and biases too, moves the logits."""
    config_class, settings = FAMILIES[family]
    config = config_class(**(_COMMON | settings | overrides))
    oracle = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            spread = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * spread if "norm" in name else 0.15 * spread)
    return oracle


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Checkpoint]:
    built: dict[str, Checkpoint] = {}

    def build(family: str) -> Checkpoint:
        if family not in built:
            oracle = build_oracle(family)
            folder = tmp_path_factory.mktemp(family)
            oracle.save_pretrained(folder)
            built[family] = Checkpoint(family, oracle, folder)
        return built[family]

    return build


class PagedRun:
    """Feeds sequences to a model step by step, each token's keys and values in a block chosen at random."""

    def __init__(
        self,
        model: Decoder,
        sequences: list[list[int]],
        *,
        block_size: int = 4,
        seed: int = 0,
        room: int = 0,
        adapters: Sequence[str | None] | None = None,
    ) -> None:
        """`room` is how many tokens each sequence may grow by; `adapters` names each one's adapter."""
        config = model.config
        self.sequences = sequences
        self.done = [0] * len(sequences)
        self._model = model
        self._block_size = block_size
        widest = max(-(-(len(sequence) + room) // block_size) for sequence in sequences)
        order = np.random.default_rng(seed).permutation(widest * len(sequences))
        self._tables = torch.from_numpy(order.reshape(len(sequences), widest).astype(np.int32))
        kind = CpuKVCache if isinstance(model, NativeCausalLM) else ReferenceKVCache
        self._cache = kind(
            num_layers=config.num_layers,
            num_blocks=order.size,
            block_size=block_size,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=model.dtype,
        )
        self._logits: list[list[Tensor]] = [[] for _ in sequences]
        self._adapters = None if adapters is None else [-1 if a is None else model.adapters[a] for a in adapters]

    def step(self, counts: Sequence[int]) -> None:
        """Compute the next `counts[i]` tokens of each sequence `i`, all in one padding-free batch."""
        scheduled = sorted((i for i, count in enumerate(counts) if count), key=lambda i: counts[i] > 1)
        tokens, positions, slots, starts, adapters = [], [], [], [0], []
        for i in scheduled:
            span = range(self.done[i], self.done[i] + counts[i])
            table = self._tables[i].tolist()
            tokens += [self.sequences[i][position] for position in span]
            positions += span
            slots += [table[p // self._block_size] * self._block_size + p % self._block_size for p in span]
            starts.append(len(tokens))
            adapters += [self._adapters[i] if self._adapters else -1] * len(span)
            self.done[i] = span.stop
        batch = AttentionBatch(
            block_tables=self._tables[scheduled],
            context_lens=torch.tensor([self.done[i] for i in scheduled], dtype=torch.int32),
            query_starts=torch.tensor(starts, dtype=torch.int32),
            slots=torch.tensor(slots),
            num_decodes=sum(counts[i] == 1 for i in scheduled),
        )
        with torch.inference_mode():
            hidden = self._model.forward(
                torch.tensor(tokens),
                torch.tensor(positions),
                self._cache,
                batch,
                adapters=torch.tensor(adapters) if self._adapters else None,
            )
            logits = self._model.logits(hidden)
        for i, start, stop in zip(scheduled, starts, starts[1:], strict=False):
            self._logits[i].append(logits[start:stop])

    def run_whole(self) -> list[Tensor]:
        self.step([len(sequence) for sequence in self.sequences])
        return self.logits()

    def generate_greedily(self, num_tokens: int) -> list[list[int]]:
        """Prefill every sequence whole, then decode all of them side by side."""
        prompt_lengths = [len(sequence) for sequence in self.sequences]
        logits = self.run_whole()
        for _ in range(num_tokens - 1):
            self._append_best(logits)
            self.step([1] * len(self.sequences))
            logits = [parts[-1] for parts in self._logits]
        self._append_best(logits)
        return [sequence[length:] for sequence, length in zip(self.sequences, prompt_lengths, strict=True)]

    def _append_best(self, logits: list[Tensor]) -> None:
        for sequence, scores in zip(self.sequences, logits, strict=True):
            sequence.append(int(scores[-1].argmax()))

    def run_in_pieces(self, generator: np.random.Generator) -> list[Tensor]:
        """Every sequence in chunks of random size, 1 included, some sequences idle in some steps."""
        while any(done < len(sequence) for done, sequence in zip(self.done, self.sequences, strict=True)):
            left = [len(sequence) - done for done, sequence in zip(self.done, self.sequences, strict=True)]
            wanted = generator.choice([0, 1, 1, 2, 3, 9], size=len(left))
            counts = [min(int(want), rest) for want, rest in zip(wanted, left, strict=True)]
            if any(counts):
                self.step(counts)
        return self.logits()

    def logits(self) -> list[Tensor]:
        """Per sequence `[tokens, vocab]`."""
        return [torch.cat(parts) for parts in self._logits]


@pytest.fixture(scope="session")
def paged_run() -> type[PagedRun]:
    return PagedRun


@pytest.fixture(scope="session")
def sequences() -> list[list[int]]:
    """Mixed lengths, the longest well beyond every window and every stretched wavelength."""
    generator = np.random.default_rng(3)
    return [generator.integers(0, VOCAB_SIZE, length).tolist() for length in (1, 7, 23, 60)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "family" in metafunc.fixturenames:
        metafunc.parametrize("family", list(FAMILIES))
