"""The lengths of the traffic that a plan is made for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from looseleaf.plan.errors import InvalidPlan

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean tokens of prompts and of answers, and the tokens of the longest request, both together."""

    prompt: float
    output: float
    longest: int

    @property
    def at_end(self) -> float:
        """A request's mean length when it ends."""
        return self.prompt + self.output

    @property
    def on_average(self) -> float:
        """A request's mean length over the time of its decoding, which it spends growing evenly."""
        return self.prompt + self.output / 2


def parse_lengths(text: str) -> Lengths:
    """ "prompt=552,output=128" or, uniform between two, "prompt=800-1200,output=4000-6000". Raises `InvalidPlan`."""
    values: dict[str, tuple[int, int]] = {}
    for entry in text.split(","):
        key, equals, value = entry.strip().partition("=")
        match = _RANGE.fullmatch(value.strip())
        if not equals or key not in ("prompt", "output") or match is None or key in values:
            raise InvalidPlan(
                f"The lengths are {text[:100]!r}.", hint="Write prompt=N,output=N or prompt=N-M,output=N-M."
            )
        low = int(match[1])
        high = int(match[2] or low)
        if not 1 <= low <= high <= 2**31:
            raise InvalidPlan(f"{key} is {value.strip()[:40]}.", hint="It must be at least 1, the larger number last.")
        values[key] = (low, high)
    if missing := {"prompt", "output"} - values.keys():
        raise InvalidPlan(f"The lengths {text[:100]!r} name no {missing.pop()}.", hint="Write prompt=N,output=N.")
    (p_low, p_high), (o_low, o_high) = values["prompt"], values["output"]
    return Lengths((p_low + p_high) / 2, (o_low + o_high) / 2, p_high + o_high)
