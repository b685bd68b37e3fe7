"""A step's time from the figures of the hardware and of the model alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from looseleaf.errors import ConfigurationError
from looseleaf.plan.arithmetic import ModelArithmetic
from looseleaf.plan.hardware import Hardware


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
        whole = [term for term in model.context_terms if term.limit is None]
        self._limited = [(term.limit, term) for term in model.context_terms if term.limit is not None]
        self._bytes_per_token = sum(term.bytes_per_token for term in whole)
        self._flops_per_pair = sum(term.flops_per_pair for term in whole)
        self._flops_per_prompt_pair = sum(term.flops_per_prompt_pair for term in whole)

    def seconds(
        self, *, num_tokens: int, num_seqs: int, num_sampled: int, context_tokens: int, attention_pairs: int
    ) -> float:
        decodes = num_tokens == num_seqs
        read = float(context_tokens * self._bytes_per_token)
        flops = float(attention_pairs * (self._flops_per_pair if decodes else self._flops_per_prompt_pair))
        for limit, term in self._limited:
            context = min(context_tokens, num_seqs * limit + num_tokens - num_seqs)
            pairs = min(attention_pairs, num_tokens * limit)
            read += context * term.bytes_per_token
            flops += pairs * (term.flops_per_pair if decodes else term.flops_per_prompt_pair)
        attention = max(read / self._bytes_per_second, flops / self._flops_per_second)
        return self._without_attention(num_tokens, num_seqs, num_sampled) + attention

    def decode_seconds(self, *, num_seqs: int, context_tokens: int, num_steps: int) -> NDArray[np.float64]:
        contexts = np.arange(context_tokens, context_tokens + num_seqs * num_steps, num_seqs, dtype=np.float64)
        read, flops = contexts * self._bytes_per_token, contexts * self._flops_per_pair
        for limit, term in self._limited:
            context = np.minimum(contexts, num_seqs * limit)
            read += context * term.bytes_per_token
            flops += context * term.flops_per_pair
        attention: NDArray[np.float64] = np.maximum(read / self._bytes_per_second, flops / self._flops_per_second)
        return self._without_attention(num_seqs, num_seqs, num_seqs) + attention

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
