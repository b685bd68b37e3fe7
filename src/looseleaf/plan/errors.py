"""Why no plan can be made. Each says what is missing, and what to give instead."""

from __future__ import annotations

from looseleaf.errors import ConfigurationError, ModelError


class UnknownArchitecture(ModelError):
    """The architecture is not known, so nothing is said about its memory; the message says what would be needed."""


class InvalidModelShape(ModelError):
    """The model's configuration lacks a number, or its numbers contradict one another."""


class UnknownModelName(ModelError):
    """Neither a configuration file nor a name that the planner knows."""


class UnknownHardware(ConfigurationError):
    """Neither a device that the planner knows nor an amount of memory."""


class InvalidPlan(ConfigurationError):
    """A setting of the plan makes no sense, alone or with this model."""


class DoesNotFit(ConfigurationError):
    """Not even one request of the maximum length fits.

    Attributes: `needed` and `available` bytes of keys and values, `max_model_len`, and `longest` tokens that would fit.
    """

    def __init__(
        self, *, needed: int, available: int, max_model_len: int, longest: int, change: str | None = None
    ) -> None:
        super().__init__(
            f"A request of {max_model_len:,} tokens takes {needed:,} bytes of keys and values, and there are "
            f"{available:,}: up to {longest:,} tokens would fit.",
            hint=f"The cheapest change: {change}." if change else "No single change makes it fit.",
        )
        self.needed = needed
        self.available = available
        self.max_model_len = max_model_len
        self.longest = longest


class UnreadableLog(ConfigurationError):
    """The log cannot be read, or holds no start-up line of an engine that is known."""
