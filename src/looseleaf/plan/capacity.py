"""What fits: from a device and a model to blocks, tokens and requests at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from looseleaf.plan.activations import ActivationPeak, activation_peak
from looseleaf.plan.arithmetic import ModelArithmetic
from looseleaf.plan.errors import InvalidPlan
from looseleaf.plan.hardware import Hardware
from looseleaf.plan.kv_layout import KVLayout, most_shareable
from looseleaf.plan.shape import ModelShape


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Everything that a plan depends on beside the model. Sizes are of one device.

    `num_blocks`, `kv_cache_memory`: a pool that is already known, instead of one derived from the device.
    `reserve`: bytes for the driver and the runtime; None: the device's own figure. `extra_weights`: what is not
    counted, such as a vision part; `weight_memory`: all weights, instead of the count.
    """

    hardware: Hardware | None = None
    memory_utilization: float = 0.9
    reserve: int | None = None
    weights_dtype: str | None = None
    quantization: str | None = None
    weight_memory: int | None = None
    extra_weights: int = 0
    kv_cache_dtype: str = "auto"
    kv_cache_memory: int | None = None
    num_blocks: int | None = None
    block_size: int = 16
    max_model_len: int | None = None
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 64
    tensor_parallel_size: int = 1
    keep_windows: bool = False
    shareable_unit: int | None = None


class Capacity:
    """What of one model fits under one setting. Figures are of one rank, unless they count requests or tokens.

    Raises `InvalidPlan` for settings that make no sense.
    """

    def __init__(self, shape: ModelShape, settings: PlanSettings) -> None:
        _check(shape, settings)
        self.shape = shape
        self.settings = settings
        self.arithmetic = ModelArithmetic(
            shape,
            dtype=settings.weights_dtype,
            quantization=settings.quantization,
            kv_cache_dtype=settings.kv_cache_dtype,
            tensor_parallel=settings.tensor_parallel_size,
        )
        self.layout = KVLayout(
            self.arithmetic,
            block_size=settings.block_size,
            step_tokens=settings.max_num_batched_tokens,
            keep_windows=settings.keep_windows,
        )
        self.max_model_len = settings.max_model_len or shape.max_len

    @cached_property
    def derived(self) -> bool:
        """Whether the pool follows from the device, rather than being given."""
        return self.settings.num_blocks is None and self.settings.kv_cache_memory is None

    @cached_property
    def usable(self) -> int:
        """The part of the device's memory that may be used."""
        hardware = self.settings.hardware
        if hardware is None or hardware.memory_bytes is None:
            return 0
        return int(hardware.memory_bytes * self.settings.memory_utilization)

    @cached_property
    def weight_bytes(self) -> int:
        counted = self.arithmetic.weight_bytes
        given = self.settings.weight_memory
        ranks = self.settings.tensor_parallel_size
        return (counted if given is None else -(-given // ranks)) + self.settings.extra_weights

    @cached_property
    def activations(self) -> ActivationPeak:
        hardware = self.settings.hardware
        return activation_peak(
            self.arithmetic,
            self.settings.max_num_batched_tokens,
            self.settings.max_num_seqs,
            wide=hardware is not None and hardware.kind == "cpu",
        )

    @cached_property
    def reserve(self) -> int:
        if self.settings.reserve is not None:
            return self.settings.reserve
        return 0 if self.settings.hardware is None else self.settings.hardware.runtime_reserve

    @cached_property
    def left_for_cache(self) -> int:
        """Bytes of the pool, before rounding to blocks; below 0: the weights alone do not fit."""
        if self.settings.num_blocks is not None:
            return self.settings.num_blocks * self.layout.block_bytes
        if self.settings.kv_cache_memory is not None:
            return self.settings.kv_cache_memory
        return self.usable - self.weight_bytes - self.activations.nbytes - self.reserve

    @cached_property
    def num_blocks(self) -> int:
        if self.settings.num_blocks is not None:
            return self.settings.num_blocks
        return max(self.left_for_cache, 0) // self.layout.block_bytes

    @cached_property
    def pool_bytes(self) -> int:
        return self.num_blocks * self.layout.block_bytes

    def concurrency(self, length: float) -> float:
        """Requests of `length` tokens that fit at once; a fraction means that not even one does."""
        needed = self.layout.request_bytes(max(round(length), 1))
        return self.pool_bytes / needed if needed else float("inf")

    @cached_property
    def tokens(self) -> int:
        """Tokens that fit: all slots of the pool, or, where layers differ, those of requests of the largest length."""
        if self.layout.uniform:
            return self.num_blocks * self.layout.block_size
        return int(self.concurrency(self.max_model_len) * self.max_model_len)

    def tokens_at(self, length: float) -> int:
        """Tokens that fit in requests of `length`: what a pool without windows and states would have to hold."""
        if self.layout.uniform:
            return self.tokens
        return int(self.concurrency(length) * length)

    def bytes_of_tokens(self, tokens: int, length: float) -> int:
        """The pool that `tokens_at` gives for `length`."""
        whole = max(round(length), 1)
        per_token = self.layout.bytes_per_token if self.layout.uniform else self.layout.request_bytes(whole) / whole
        return int(tokens * per_token)

    @cached_property
    def longest_context(self) -> int:
        """The longest sequence of which one fits, up to what the model knows."""
        return self.layout.longest(self.pool_bytes, max(self.shape.max_len, self.max_model_len))

    @cached_property
    def fits(self) -> bool:
        """Whether one request of the maximum length does; engines refuse to start otherwise."""
        return self.pool_bytes > 0 and self.concurrency(self.max_model_len) >= 1

    @cached_property
    def missing_bytes(self) -> int:
        """What one request of the maximum length lacks; 0 if it fits."""
        return max(self.layout.request_bytes(self.max_model_len) - self.left_for_cache, 0)

    @cached_property
    def shareable_unit(self) -> int:
        return self.settings.shareable_unit or self.layout.shareable_unit

    def most_shareable(self, prompt: int) -> int:
        """Tokens of a prompt that can come from the prefix cache at most."""
        return most_shareable(prompt, self.shareable_unit)

    def with_settings(self, **changes: object) -> Capacity:
        return Capacity(self.shape, replace(self.settings, **changes))  # type: ignore[arg-type]

    def step_seconds(self, sequences: int, context: float) -> float | None:
        """The least that a decode step can take: weights and contexts once over the device's bandwidth.

        As published, without what kernels lose of it; None where the bandwidth is not known.
        """
        hardware = self.settings.hardware
        if hardware is None or hardware.bandwidth is None:
            return None
        contexts = sequences * self.arithmetic.kv_bytes_read(max(round(context), 1))
        return (self.arithmetic.weight_bytes_read(max(sequences, 1)) + contexts) / hardware.bandwidth


def _check(shape: ModelShape, settings: PlanSettings) -> None:
    if settings.num_blocks is not None and settings.kv_cache_memory is not None:
        raise InvalidPlan("Both num_blocks and kv_cache_memory are given.", hint="Give one of them.")
    given = settings.num_blocks is not None or settings.kv_cache_memory is not None
    if not given and settings.hardware is None:
        raise InvalidPlan(
            "Neither hardware nor a pool is given.", hint="Give --hardware, --num-blocks or --kv-cache-memory."
        )
    if not given and settings.hardware is not None and settings.hardware.memory_bytes is None:
        name = settings.hardware.name
        raise InvalidPlan(f"How much memory a machine with {name} has is not known.", hint=f"Write {name}:64GiB, say.")
    if not 0 < settings.memory_utilization <= 1:
        raise InvalidPlan(
            f"memory_utilization is {settings.memory_utilization:g}.", hint="It must be above 0, up to 1."
        )
    counts = {
        "num_blocks": settings.num_blocks,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "shareable_unit": settings.shareable_unit,
    }
    for name, value in counts.items():
        if value is not None and not 1 <= value < 2**40:
            raise InvalidPlan(f"{name} is {value}.", hint="It must be at least 1.")
    if settings.max_model_len is not None and settings.max_model_len > 8 * shape.max_len:
        raise InvalidPlan(
            f"max_model_len is {settings.max_model_len:,}, and {shape.name} knows {shape.max_len:,} positions.",
            hint="Lower max_model_len.",
        )
