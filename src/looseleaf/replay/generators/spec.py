"""The description of a generated trace, as a text: n=450,arrivals=poisson:10,prompt=uniform:800-1200,output=500."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from looseleaf.replay.errors import InvalidSpec
from looseleaf.replay.generators.arrivals import AllAtOnce, Arrivals, parse_arrivals
from looseleaf.replay.generators.lengths import PUBLISHED, Lengths, parse_lengths
from looseleaf.replay.generators.parsing import count, number


@dataclass(frozen=True, slots=True)
class GeneratorSpec:
    n: int
    """Requests."""
    prompt: Lengths
    """What a request's prompt has of its own: in a conversation, what the user adds with each turn."""
    output: Lengths
    arrivals: Arrivals = field(default_factory=AllAtOnce)
    """Of requests; of conversations where there are `turns`."""
    system_tokens: int = 0
    """Of the system prompt before every prompt."""
    system_prompts: int = 1
    """Different ones, equally likely; a conversation keeps its own."""
    turns: Lengths | None = None
    """Of each conversation. A turn's prompt is all turns and answers before it, and something new."""
    think: float = 0.0
    """Mean seconds from one turn's arrival to the next one's, exponentially distributed."""
    tenants: tuple[tuple[str, float], ...] = ()
    """Names and weights."""
    num_samples: int = 1
    seed: int = 0


def parse_spec(text: str) -> GeneratorSpec:
    """Raises `InvalidSpec`."""
    given: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or key not in _PARSERS or key in given:
            fault = "is given twice" if key in given else "is no KEY=VALUE" if not equals else "is not known"
            raise InvalidSpec(
                f"In the description of a trace, {part!r} {fault}.", hint=f"Keys are {', '.join(_PARSERS)}."
            )
        given[key] = value
    if published := given.pop("lengths", None):
        _PARSERS["lengths"](published)
        given = {"prompt": published, "output": published, **given}
    if missing := [key for key in ("n", "prompt", "output") if key not in given]:
        raise InvalidSpec(
            f"The description of a trace lacks {' and '.join(missing)}.",
            hint="Write for example n=450,arrivals=poisson:10,prompt=uniform:800-1200,output=uniform:4000-6000,seed=3.",
        )
    values: dict[str, Any] = {}
    for key, value in given.items():
        values |= _PARSERS[key](value)
    spec = GeneratorSpec(**values)
    if spec.think and spec.turns is None:
        raise InvalidSpec("There is a think time but no turns.", hint="Add for example turns=uniform:2-6.")
    return spec


def _system(text: str) -> dict[str, int]:
    tokens, times, prompts = text.partition("x")
    return {
        "system_tokens": count(tokens, "the system prompt's length", most=1 << 24),
        "system_prompts": count(prompts, "the number of system prompts", most=1 << 16) if times else 1,
    }


def _tenants(text: str) -> dict[str, tuple[tuple[str, float], ...]]:
    if text.isdigit():
        return {
            "tenants": tuple((f"tenant-{i}", 1.0) for i in range(count(text, "the number of tenants", most=1 << 16)))
        }
    pairs = [part.rpartition(":") for part in text.split("|")]
    return {"tenants": tuple((name, number(weight, "a tenant's weight", above=True)) for name, _, weight in pairs)}


def _lengths(text: str) -> dict[str, Any]:
    if text.split(":")[0] not in PUBLISHED:
        raise InvalidSpec(
            f"lengths is {text!r}.", hint=f"Write one of {', '.join(PUBLISHED)}; or prompt=… and output=…."
        )
    return {}


_PARSERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "n": lambda text: {"n": count(text, "n")},
    "arrivals": lambda text: {"arrivals": parse_arrivals(text)},
    "prompt": lambda text: {"prompt": parse_lengths(text, "prompt")},
    "output": lambda text: {"output": parse_lengths(text, "output")},
    "lengths": _lengths,
    "system": _system,
    "turns": lambda text: {"turns": parse_lengths(text, "turns")},
    "think": lambda text: {"think": number(text, "the think time")},
    "tenants": _tenants,
    "samples": lambda text: {"num_samples": count(text, "the number of samples", most=1 << 16)},
    "seed": lambda text: {"seed": count(text, "the seed", least=0)},
}
