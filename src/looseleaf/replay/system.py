"""What serves, by name: the cost of its steps, and the pool that it has room for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from looseleaf.errors import ConfigurationError
from looseleaf.plan.capacity import Capacity, PlanSettings
from looseleaf.plan.hardware import find_hardware, format_size
from looseleaf.plan.known_models import find_model
from looseleaf.replay.cost import StepCost
from looseleaf.replay.cost_files import load_cost
from looseleaf.replay.roofline import Roofline

DEFAULT_MODEL, DEFAULT_HARDWARE = "llama-3.1-8b", "a100-40gb"


@dataclass(frozen=True, slots=True)
class System:
    """`capacity` is None where step times were measured and nothing is said of the model and the device."""

    capacity: Capacity | None
    cost: StepCost
    cost_name: str

    @property
    def pool_tokens(self) -> int:
        """Token slots that fit beside the weights. Raises `ConfigurationError` where none do, or nobody knows."""
        capacity = self.capacity
        if capacity is None:
            raise ConfigurationError(
                "Step times alone do not say how large the pool is.",
                hint="Give --pool-tokens or --num-blocks, or both --model and --hardware.",
            )
        if not capacity.tokens:
            raise ConfigurationError(
                f"{format_size(capacity.usable)} that may be used of the device have no room for keys and values "
                f"beside {format_size(capacity.weight_bytes)} of weights and "
                f"{format_size(capacity.activations.nbytes)} of activations.",
                hint="Use --tensor-parallel-size, other --hardware or a smaller model; or give --pool-tokens.",
            )
        return capacity.tokens

    @property
    def title(self) -> str:
        capacity = self.capacity
        if capacity is None:
            return f"The time of a step is {self.cost_name}."
        hardware = capacity.settings.hardware
        devices = "" if hardware is None else hardware.name
        if capacity.settings.tensor_parallel_size > 1:
            devices = f"{capacity.settings.tensor_parallel_size} × {devices}"
        return (
            f"{capacity.shape.name} on {devices}: {format_size(capacity.weight_bytes)} of weights, "
            f"{capacity.arithmetic.kv_bytes_per_token:,} bytes of keys and values per token; the time of a step is "
            f"{self.cost_name}."
        )

    @property
    def warnings(self) -> list[str]:
        if self.capacity is None or self.capacity.layout.uniform:
            return []
        return [
            f"Layers of {self.capacity.shape.name} keep different amounts per token (windows or states). The replay "
            "has one pool for all of them, as large as sequences of the maximum length make it: shorter ones look "
            "better than they are."
        ]


def build_system(
    model: str | None,
    hardware: str | None,
    *,
    cost: Path | None = None,
    kv_cache_dtype: str = "auto",
    tensor_parallel: int = 1,
    memory_utilization: float = 0.9,
) -> System:
    """The device's figures give step times by roofline, unless `cost` is a file of measured ones.

    Raises what `find_model`, `find_hardware`, `Capacity`, `Roofline` and `load_cost` raise.
    """
    if cost is not None and (model is None or hardware is None):
        return System(None, load_cost(cost), f"as in {cost}")
    device = find_hardware(hardware or DEFAULT_HARDWARE)
    settings = PlanSettings(
        hardware=device,
        memory_utilization=memory_utilization,
        kv_cache_dtype=kv_cache_dtype,
        tensor_parallel_size=tensor_parallel,
    )
    capacity = Capacity(find_model(model or DEFAULT_MODEL), settings)
    if cost is not None:
        return System(capacity, load_cost(cost), f"as in {cost}")
    return System(capacity, Roofline(capacity.arithmetic, device), "by roofline")
