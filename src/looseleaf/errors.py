"""Every error a caller can meet, rooted in one type.

Each error says what happened, with the numbers, and carries a `hint`: what to do about it. Layers define
their own subclasses next to the code that raises them; nothing here imports another module of Looseleaf.
"""

from __future__ import annotations

from typing import Any


class LooseleafError(Exception):
    """Root of all typed errors. `str(error)` is what happened; `error.hint` is what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()

    def __reduce__(self) -> tuple[Any, ...]:
        # BaseException would call the class with the message alone, which subclasses with numbers do not accept.
        return _without_init, (type(self), self.args), self.__dict__


def _without_init(kind: type[LooseleafError], args: tuple[Any, ...]) -> LooseleafError:
    return kind.__new__(kind, *args)


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
