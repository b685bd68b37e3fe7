"""A step's time from the figures of the hardware and of the model alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from looseleaf.errors import ConfigurationError
from looseleaf.plan.arithmetic import ModelArithmetic
from looseleaf.plan.hardware import Hardware


class _Attention(NamedTuple):
    """Seconds: per token of context read, per pair of query and key in a decode step, and in a prompt's."""

    token: float
    pair: float
    prompt_pair: float


class Roofline:
    """Within the matrices, and within attention, reading and arithmetic go on at the same time, so each takes the
    longer of the two (Williams et al., "Roofline", 2009). In every layer one waits for the other, so the two add up;
    and so does the overhead of the step, which nothing overlaps here.

    Where layers read no more than a window of the context, sequences are taken to be of equal length.
    """

    def __init__(self, model: ModelArithmetic, hardware: Hardware) -> None:
        """Raises `ConfigurationError` for hardware of which bandwidth or arithmetic are not known."""
        flops = hardware.peak_flops(model.dtype)
        if hardware.bandwidth is None or flops is None:
            raise ConfigurationError(
                f"The bandwidth and the {model.dtype} arithmetic of {hardware.name!r} are not known.",
                hint="Name hardware of the table, or measure this machine with `looseleaf calibrate`.",
            )
        self.model = model
        self.hardware = hardware
        self._bytes_per_second = hardware.bandwidth * hardware.bandwidth_efficiency
        self._flops_per_second = flops * hardware.compute_efficiency
        self._attention = _Attention(0.0, 0.0, 0.0)
        """Of the layers that read the whole context."""
        self._limited: list[tuple[int, _Attention]] = []
        """Of those that read no more than so many tokens."""
        for term in model.context_terms:
            part = _Attention(
                term.bytes_per_token / self._bytes_per_second,
                term.flops_per_pair / self._flops_per_second,
                term.flops_per_prompt_pair / self._flops_per_second,
            )
            if term.limit is None:
                self._attention = _Attention(*map(sum, zip(self._attention, part, strict=True)))
            else:
                self._limited.append((term.limit, part))
        self._decode_steps: dict[int, float] = {}
        """By sequences: a decode step without attention."""

    def seconds(
        self, *, num_tokens: int, num_seqs: int, num_sampled: int, context_tokens: int, attention_pairs: int
    ) -> float:
        decodes = num_tokens == num_seqs
        reading = context_tokens * self._attention.token
        computing = attention_pairs * (self._attention.pair if decodes else self._attention.prompt_pair)
        for limit, part in self._limited:
            reading += min(context_tokens, num_seqs * limit + num_tokens - num_seqs) * part.token
            computing += min(attention_pairs, num_tokens * limit) * (part.pair if decodes else part.prompt_pair)
        return self._without_attention(num_tokens, num_seqs, num_sampled) + max(reading, computing)

    def decode_seconds(self, *, num_seqs: int, context_tokens: int, num_steps: int) -> NDArray[np.float64]:
        rest = self._decode_steps.get(num_seqs)
        if rest is None:
            rest = self._decode_steps[num_seqs] = self._without_attention(num_seqs, num_seqs, num_seqs)
        contexts = np.arange(context_tokens, context_tokens + num_seqs * num_steps, num_seqs, dtype=np.float64)
        seconds: NDArray[np.float64]
        if not self._limited:  # rounding is monotone: the larger product is that of the larger factor
            seconds = rest + contexts * max(self._attention.token, self._attention.pair)
            return seconds
        reading, computing = contexts * self._attention.token, contexts * self._attention.pair
        for limit, part in self._limited:
            context = np.minimum(contexts, num_seqs * limit)
            reading += context * part.token
            computing += context * part.pair
        seconds = rest + np.maximum(reading, computing)
        return seconds

    def describe(self) -> dict[str, Any]:
        hardware = self.hardware
        return {
            "kind": "roofline",
            "model": self.model.whole.name,
            "tensor_parallel": self.model.tensor_parallel,
            "weight_bytes": self.model.weight_bytes,
            "kv_bytes_per_token": self.model.kv_bytes_per_token,
            "hardware": hardware.name,
            "bytes_per_second": self._bytes_per_second,
            "flops_per_second": self._flops_per_second,
            "step_overhead": hardware.step_overhead,
        }

    def _without_attention(self, num_tokens: int, num_seqs: int, num_sampled: int) -> float:
        model = self.model
        read = model.weight_bytes_read(num_tokens) + 2.0 * num_seqs * model.state_bytes
        flops = float(num_tokens * model.flops_per_token + num_sampled * model.flops_per_sample)
        linear = max(read / self._bytes_per_second, flops / self._flops_per_second)
        return linear + self.hardware.step_overhead
