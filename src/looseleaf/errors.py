"""Every error a caller can meet, rooted in one type.

Each error says what happened, with the numbers, and carries a `hint`: what to do about it. Layers define
their own subclasses next to the code that raises them; nothing here imports anything.
"""

from __future__ import annotations


class LooseleafError(Exception):
    """Root of all typed errors. `str(error)` is what happened; `error.hint` is what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class InvalidRequest(LooseleafError):
    """The caller's request is wrong in itself (an empty prompt, a negative temperature, …)."""


class RequestTooLarge(InvalidRequest):
    """The request could never fit, not even in an empty pool or under the model's maximum length.

    Attributes: `needed` tokens, `limit` tokens (the largest that would fit).
    """

    def __init__(self, message: str, *, needed: int, limit: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.needed = needed
        self.limit = limit


class ConfigurationError(LooseleafError):
    """An engine setting makes no sense here (a budget too small for one block, an unknown allocator, …)."""


class ModelError(LooseleafError):
    """A model folder, file or name cannot be used."""
