"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) and the ways of stretching it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor


def plain_frequencies(head_dim: int, theta: float) -> Tensor:
    """Radians per position of each of the `head_dim / 2` rotated pairs, float32."""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation (Chen et al. 2023, arXiv:2306.15595): every frequency divided by `factor`."""

    factor: float

    attention_factor = 1.0

    def frequencies(self, head_dim: int, theta: float) -> Tensor:
        return plain_frequencies(head_dim, theta) / self.factor


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1: long wavelengths divided by `factor`, short ones kept, a smooth ramp between the two."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    attention_factor = 1.0

    def frequencies(self, head_dim: int, theta: float) -> Tensor:
        plain = plain_frequencies(head_dim, theta)
        turns = self.original_max_position_embeddings * plain / (2 * math.pi)
        kept = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return (1 - kept) * plain / self.factor + kept * plain


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): interpolates the slow dimensions, keeps the fast ones, and
    sharpens attention by `attention_factor`, which multiplies cosines and sines."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def frequencies(self, head_dim: int, theta: float) -> Tensor:
        plain = plain_frequencies(head_dim, theta)
        low = max(math.floor(self._dimension(self.beta_fast, head_dim, theta)), 0)
        high = min(math.ceil(self._dimension(self.beta_slow, head_dim, theta)), head_dim - 1)
        ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
        interpolated = ramp.clamp(0, 1)
        return plain / self.factor * interpolated + plain * (1 - interpolated)

    def _dimension(self, rotations: float, head_dim: int, theta: float) -> float:
        """The dimension that turns `rotations` times within the original context."""
        wavelengths = self.original_max_position_embeddings / (rotations * 2 * math.pi)
        return head_dim * math.log(wavelengths) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True)
class FrequencyDivisors:
    """One divisor per frequency, as GGUF files carry them in `rope_freqs.weight`."""

    divisors: tuple[float, ...]

    attention_factor = 1.0

    def frequencies(self, head_dim: int, theta: float) -> Tensor:
        return plain_frequencies(head_dim, theta) / torch.tensor(self.divisors, dtype=torch.float32)


_ROWS_PER_PIECE = 1024

RopeScaling: TypeAlias = LinearScaling | Llama3Scaling | YarnScaling | FrequencyDivisors


class Rotation(NamedTuple):
    """One step's rotations, ready to apply: `[T, 1, head_dim]` each, the same for every layer."""

    cos: Tensor
    signed_sin: Tensor
    """The first half is negated, so that rotating by half a turn is a plain swap of halves."""

    def apply(self, heads: Tensor) -> Tensor:
        """Rotate `heads` (`[T, num_heads, head_dim]`) into a new tensor."""
        swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
        return swapped.mul_(self.signed_sin).add_(heads * self.cos)


class RotaryTable:
    """Cosines and sines by position, computed in float32 and kept in the model's dtype.

    One table for all steps makes a position's rotation bitwise the same in every batch. It grows with the positions
    that are asked for: the `max_positions` of a configuration are a claim, and may be millions.
    """

    def __init__(
        self,
        head_dim: int,
        max_positions: int,
        theta: float,
        scaling: RopeScaling | None,
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> None:
        frequencies = scaling.frequencies(head_dim, theta) if scaling else plain_frequencies(head_dim, theta)
        self._frequencies = frequencies.to(device)
        self._attention_factor = scaling.attention_factor if scaling else 1.0
        self._max_positions = max_positions
        self._table = torch.empty(0, head_dim, dtype=dtype, device=device)

    def at(self, positions: Tensor) -> Rotation:
        """The rotations of `positions` (int64 `[T]`, all below `max_positions`)."""
        cos, sin = self.table(int(positions.max()) + 1)[positions].unsqueeze(1).chunk(2, dim=-1)
        return Rotation(torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))

    def table(self, length: int) -> Tensor:
        """`[positions, head_dim]`, at least `length` of them unless there are fewer: cosines, then sines."""
        if length > len(self._table):
            self._grow(length)
        return self._table

    def _grow(self, length: int) -> None:
        """To twice the size or more; by the same pieces whatever was asked for before, so that the bits are too."""
        rows = min(max(length, 2 * len(self._table)), self._max_positions)
        pieces = [self._table]
        for start in range(len(self._table), rows, _ROWS_PER_PIECE):
            positions = torch.arange(start, start + _ROWS_PER_PIECE, dtype=torch.float32, device=self._table.device)
            angles = positions[:, None] * self._frequencies
            both = torch.cat((angles.cos(), angles.sin()), dim=-1).mul_(self._attention_factor)
            pieces.append(both.to(self._table.dtype))
        self._table = torch.cat(pieces)
