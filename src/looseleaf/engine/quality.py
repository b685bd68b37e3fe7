"""What a setting costs on real text: a candidate's next-token distributions against a baseline's, token by token.

Both engines' models read the same tokens (teacher forcing) through their paged KV caches, in step: a few windows at
once, first in chunks as prompts are computed, then token by token as answers are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from looseleaf.engine.config import EngineConfig
from looseleaf.engine.engine import Engine
from looseleaf.errors import ConfigurationError
from looseleaf.kernels.interface import AttentionBatch

ROWS_AT_ONCE = 64
"""Positions whose two distributions are held at a time: those of a window would be gigabytes."""


@dataclass(frozen=True, slots=True)
class TeacherForcing:
    """How the text is read. The last `decodes` tokens of each window go through the model one at a time."""

    window: int = 1024
    chunk: int = 256
    decodes: int = 128
    windows_at_once: int = 4

    def __post_init__(self) -> None:
        for name in ("window", "chunk", "windows_at_once"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)} but must be at least 1.")
        if not 0 <= self.decodes <= self.window:
            raise ConfigurationError(f"decodes is {self.decodes} but must be 0 to {self.window}, the window.")

    def steps(self) -> list[tuple[int, int]]:
        """First and last position (exclusive) of each step over a window."""
        prefill = self.window - self.decodes
        chunks = [(start, min(start + self.chunk, prefill)) for start in range(0, prefill, self.chunk)]
        return chunks + [(position, position + 1) for position in range(prefill, self.window)]

    def cut(self, token_ids: Sequence[int], limit: int) -> Tensor:
        """About `limit` tokens in windows from all over the text: int64 `[windows, window + 1]`, the last column being
        the token that follows a window.

        Raises `ConfigurationError` for a text that does not fill one window.
        """
        available = (len(token_ids) - 1) // self.window
        if available < 1:
            raise ConfigurationError(
                f"The text has {len(token_ids):,} tokens, but a window takes {self.window:,} and the one that follows.",
                hint="Give a longer text or a smaller window.",
            )
        count = min(max(1, round(limit / self.window)), available)
        chosen = torch.arange(count) * available // count
        return torch.tensor(token_ids).unfold(0, self.window + 1, self.window)[chosen]

    def engine_config(self, config: EngineConfig, block_bytes: int) -> EngineConfig:
        """`config` with a KV cache for exactly the windows that are read at once."""
        blocks = self.windows_at_once * -(-self.window // config.block_size)
        return replace(
            config,
            kv_cache_memory=blocks * block_bytes,
            max_model_len=self.window,
            max_num_seqs=self.windows_at_once,
            max_num_batched_tokens=self.windows_at_once * self.chunk,
        )


@dataclass(frozen=True, slots=True)
class Agreement:
    """A share of positions, with its 95 % confidence interval (Wilson 1927)."""

    count: int
    total: int

    @property
    def share(self) -> float:
        return self.count / self.total

    @property
    def interval(self) -> tuple[float, float]:
        z, n, p = 1.959964, self.total, self.share
        centre = p + z * z / (2 * n)
        reach = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, (centre - reach) / (1 + z * z / n)), min(1.0, (centre + reach) / (1 + z * z / n))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Per position, in the order of reading: float64 `[positions]`."""

    divergence: Tensor
    """KL(baseline ‖ candidate) in nats: what is lost by taking the candidate's distribution for the baseline's."""
    same_top: Tensor
    """bool: whether both find the same token the most likely."""
    baseline_loss: Tensor
    """−ln of the probability that the baseline gives to the token that follows in the text."""
    candidate_loss: Tensor

    @property
    def agreement(self) -> Agreement:
        return Agreement(int(self.same_top.sum()), len(self.same_top))

    @property
    def baseline_perplexity(self) -> float:
        return math.exp(float(self.baseline_loss.mean()))

    @property
    def candidate_perplexity(self) -> float:
        return math.exp(float(self.candidate_loss.mean()))

    def divergence_at(self, quantile: float) -> float:
        return float(torch.quantile(self.divergence, quantile))


def compare_logits(baseline: Tensor, candidate: Tensor, targets: Tensor) -> Comparison:
    """Two models' logits (`[positions, vocab]`) and the tokens that follow (int64 `[positions]`)."""
    log_p, log_q = baseline.float().log_softmax(-1), candidate.float().log_softmax(-1)
    # An impossible token adds nothing, though its log-probability is infinite.
    terms = torch.where(log_p > -math.inf, log_p.exp() * (log_p - log_q), 0.0)
    return Comparison(
        divergence=terms.sum(-1, dtype=torch.float64).clamp(min=0.0),  # rounding may leave −1e-9
        same_top=baseline.argmax(-1) == candidate.argmax(-1),
        baseline_loss=-log_p.gather(1, targets[:, None]).double()[:, 0],
        candidate_loss=-log_q.gather(1, targets[:, None]).double()[:, 0],
    )


@torch.inference_mode()
def compare(
    baseline: Engine,
    candidate: Engine,
    windows: Tensor,
    reading: TeacherForcing,
    on_step: Callable[[], None] = lambda: None,
) -> Comparison:
    """Read `windows` (of `TeacherForcing.cut`) with two idle engines of `TeacherForcing.engine_config`.

    Memory holds a step's hidden states and the logits of `ROWS_AT_ONCE` positions, twice. `on_step` is called after
    each of `TeacherForcing.steps`.
    """
    count = len(windows) * reading.window
    # Room for all results at once: small tensors that stay, allocated between large ones that go, would split the
    # memory that these leave until nothing large fits there.
    whole = Comparison(*(torch.empty(count, dtype=kind) for kind in (torch.float64, torch.bool, *[torch.float64] * 2)))
    done = 0
    for first in range(0, len(windows), reading.windows_at_once):
        group = windows[first : first + reading.windows_at_once]
        readers = [_Reader(engine, len(group), reading.window) for engine in (baseline, candidate)]
        for start, stop in reading.steps():
            hidden = [reader.read(group, start, stop) for reader in readers]
            targets = group[:, start + 1 : stop + 1].flatten()
            for rows in (slice(row, row + ROWS_AT_ONCE) for row in range(0, len(targets), ROWS_AT_ONCE)):
                logits = [engine.model.logits(h[rows]) for engine, h in zip((baseline, candidate), hidden, strict=True)]
                part = compare_logits(logits[0], logits[1], targets[rows])
                place = slice(done, done + len(part.divergence))
                for name in Comparison.__slots__:
                    getattr(whole, name)[place] = getattr(part, name)
                done = place.stop
            on_step()
    return whole


class _Reader:
    """Feeds windows of text to one engine's model through its paged cache, the blocks in no particular order."""

    def __init__(self, engine: Engine, num_windows: int, window: int) -> None:
        self._engine = engine
        self._block_size = engine.pool.block_size
        width = -(-window // self._block_size)
        shuffled = torch.randperm(num_windows * width, generator=torch.Generator().manual_seed(0))
        self._tables = shuffled.to(torch.int32).view(num_windows, width)

    def read(self, windows: Tensor, start: int, stop: int) -> Tensor:
        """Hidden states of positions `start` to `stop` of every window, one window after another."""
        count, length = len(windows), stop - start
        position = torch.arange(start, stop)
        blocks = self._tables[:, position // self._block_size].long()
        batch = AttentionBatch(
            block_tables=self._tables,
            context_lens=torch.full((count,), stop, dtype=torch.int32),
            query_starts=torch.arange(count + 1, dtype=torch.int32) * length,
            slots=(blocks * self._block_size + position % self._block_size).flatten(),
            num_decodes=count if length == 1 else 0,
        )
        tokens = windows[:, start:stop].reshape(-1).contiguous()
        return self._engine.model.forward(tokens, position.repeat(count), self._engine.kv_cache, batch)
