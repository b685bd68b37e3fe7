"""What can be wrong with sampling parameters, and with the logits of one row."""

from __future__ import annotations

from looseleaf.errors import InvalidRequest, LooseleafError


class InvalidParameter(InvalidRequest, ValueError):
    """A known parameter has a value that it cannot take. Attributes: `name`, `value`, `allowed`."""

    def __init__(self, name: str, value: object, allowed: str, *, hint: str = "") -> None:
        try:
            shown = repr(value)
        except ValueError:  # an integer with more digits than Python prints
            shown = f"a {type(value).__name__} too long to print"
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{name} is {shown} but must be {allowed}.", hint=hint)
        self.name = name
        self.value = value
        self.allowed = allowed


class UnknownParameter(InvalidRequest, TypeError):
    """No parameter has this name. Attributes: `name`, `suggestion` (the closest known name, or None)."""

    def __init__(self, name: str, suggestion: str | None) -> None:
        hint = f"Did you mean {suggestion!r}?" if suggestion else "See SamplingParams for the known ones."
        super().__init__(f"There is no sampling parameter {name!r}.", hint=hint)
        self.name = name
        self.suggestion = suggestion


class InvalidGrammar(InvalidRequest, ValueError):
    """What `structured` asks for cannot be followed: it is malformed, too large, unsupported or impossible."""

    name = "structured"


class SamplingFailed(LooseleafError):
    """No token can be sampled from one row of logits. The other rows of the step are not affected."""
