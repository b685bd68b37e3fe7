"""Devices by name: memory, bandwidth and peak arithmetic, each with its source. Sizes are parsed here too."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Literal

from looseleaf.plan.errors import InvalidPlan, UnknownHardware

GIB = 2**30

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
}
_SIZE = re.compile(r"\s*([0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:e[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device. Where only an amount of memory was given, bandwidth is None and `flops` is empty.

    `memory_bytes`: what programs see (less than what is sold, on GPUs); None for a processor whose memory depends on
    the machine. `bandwidth`: bytes per second to its memory, as published. `flops`: dense peak FLOP/s by dtype.
    `*_efficiency`: the share of the published figure that good kernels reach. `step_overhead`: seconds of a step that
    neither memory nor arithmetic explains: launches, scheduling, sampling. `runtime_reserve`: bytes that the driver's
    context, captured graphs and the allocator take; what an engine on an RTX 4090 was seen to leave unexplained.
    """

    name: str
    kind: Literal["gpu", "cpu", "unknown"]
    memory_bytes: int | None
    bandwidth: float | None = None
    flops: Mapping[str, float] | None = None
    source: str = ""
    bandwidth_efficiency: float = 0.9
    compute_efficiency: float = 0.7
    step_overhead: float = 0.0
    runtime_reserve: int = 0

    def peak_flops(self, dtype: str) -> float | None:
        """FLOP/s for multiplications in `dtype`; what lacks a unit for it runs in a wider type."""
        known = self.flops or {}
        for each in (dtype, *_WIDER.get(dtype, ("bfloat16", "float16", "float32"))):
            if each in known:
                return known[each]
        return None


_WIDER = {
    "float32": (),
    "bfloat16": ("float16", "float32"),
    "float16": ("bfloat16", "float32"),
}


@cache
def known_hardware() -> Mapping[str, Hardware]:
    """Every device of the table, by name."""
    table = json.loads(files("looseleaf.plan").joinpath("hardware.json").read_text(encoding="utf-8"))
    defaults = table["defaults"]
    devices = {}
    for name, entry in table["devices"].items():
        kind = entry["kind"]
        devices[name] = Hardware(name=name, **{**defaults[kind], **entry})
    return devices


def find_hardware(text: str) -> Hardware:
    """The device called `text`: a name, an amount of memory (24GiB), or both (epyc-9654:384GiB).

    Raises `UnknownHardware` for anything else.
    """
    name, colon, size = text.strip().partition(":")
    known = known_hardware()
    key = re.sub(r"[\s_]+", "-", name.strip().lower()).removeprefix("nvidia-").removeprefix("geforce-")
    # "RTX4090" and "RTX 4090" are the same device.
    found = next((known[each] for each in known if each.replace("-", "") == key.replace("-", "")), None)
    if found is not None:
        return replace(found, memory_bytes=parse_size(size)) if colon else found
    if not colon and _SIZE.fullmatch(text):
        return Hardware(text.strip(), "unknown", parse_size(text))
    near = difflib.get_close_matches(key, known, n=3, cutoff=0.4)
    raise UnknownHardware(
        f"No hardware is called {text[:100]!r}.",
        hint=(f"Did you mean {' or '.join(near)}? " if near else "")
        + f"Known: {', '.join(known)}; or give an amount of memory, such as 24GiB, or NAME:AMOUNT.",
    )


def parse_size(text: str) -> int:
    """ "24GiB", "24GB", "800 MB" or plain bytes → bytes. Raises `InvalidPlan`."""
    match = _SIZE.fullmatch(text)
    unit = None if match is None else _UNITS.get(match[2].lower().replace("byte", "b").replace("bs", "b"))
    if match is None or unit is None:
        raise InvalidPlan(
            f"{text[:100]!r} is not an amount of memory.", hint="Write 24GiB, 24GB, 800MB or plain bytes."
        )
    nbytes = int(float(match[1].replace("_", "")) * unit)
    if not 1 <= nbytes < 2**62:
        raise InvalidPlan(f"{text[:100]!r} is {nbytes} bytes.", hint="It must be at least 1 byte and below 4 EiB.")
    return nbytes


def format_size(nbytes: float) -> str:
    """Bytes in a binary unit, with three or four significant digits: "15.0 GiB", "1,024 MiB"."""
    size, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    if unit == "B":
        return f"{size:,.0f} B"
    return f"{size:,.{2 if abs(size) < 100 else 1}f} {unit}"
