"""What serves, by name: the cost of its steps, and the pool that it has room for."""

from __future__ import annotations

from dataclasses import dataclass

from looseleaf.errors import ConfigurationError
from looseleaf.plan.capacity import Capacity, PlanSettings
from looseleaf.plan.hardware import find_hardware, format_size
from looseleaf.plan.known_models import find_model
from looseleaf.replay.cost import StepCost
from looseleaf.replay.roofline import Roofline


@dataclass(frozen=True, slots=True)
class System:
    capacity: Capacity
    cost: StepCost

    @property
    def pool_tokens(self) -> int:
        """Token slots that fit beside the weights. Raises `ConfigurationError` where none do."""
        capacity = self.capacity
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
        hardware = capacity.settings.hardware
        devices = "" if hardware is None else hardware.name
        if capacity.settings.tensor_parallel_size > 1:
            devices = f"{capacity.settings.tensor_parallel_size} × {devices}"
        return (
            f"{capacity.shape.name} on {devices}: {format_size(capacity.weight_bytes)} of weights, "
            f"{capacity.arithmetic.kv_bytes_per_token:,} bytes of keys and values per token; the time of a step by "
            "roofline."
        )

    @property
    def warnings(self) -> list[str]:
        if self.capacity.layout.uniform:
            return []
        return [
            f"Layers of {self.capacity.shape.name} keep different amounts per token (windows or states). The replay "
            "has one pool for all of them, as large as sequences of the maximum length make it: shorter ones look "
            "better than they are."
        ]


def build_system(
    model: str,
    hardware: str,
    *,
    kv_cache_dtype: str = "auto",
    tensor_parallel: int = 1,
    memory_utilization: float = 0.9,
    max_model_len: int | None = None,
) -> System:
    """Raises what `find_model`, `find_hardware`, `Capacity` and `Roofline` raise."""
    device = find_hardware(hardware)
    settings = PlanSettings(
        hardware=device,
        memory_utilization=memory_utilization,
        kv_cache_dtype=kv_cache_dtype,
        tensor_parallel_size=tensor_parallel,
        max_model_len=max_model_len,
    )
    capacity = Capacity(find_model(model), settings)
    return System(capacity, Roofline(capacity.arithmetic, device))
