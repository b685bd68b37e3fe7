"""The settings of one replay as plain values, and the axes along which a sweep varies them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal, TypeAlias, cast, get_args

from looseleaf.errors import ConfigurationError
from looseleaf.memory import ALLOCATORS, BlockManager
from looseleaf.replay.config import ReplayConfig
from looseleaf.scheduler import SchedulerConfig
from looseleaf.scheduler.interface import PolicyName

PAGED = BlockManager.allocator
DEFAULT_BLOCK_SIZE = 16
Constraint: TypeAlias = Literal["blocks", "seats", "budget", "arrivals"]
"""What keeps requests from going on: memory, `max_num_seqs`, the step's token budget; or that none wait."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One cell of a sweep. The pool is a number of token slots, so that block sizes are compared in equal memory."""

    pool_tokens: int
    max_model_len: int
    allocator: str = PAGED
    block_size: int = DEFAULT_BLOCK_SIZE
    prefix_caching: bool = True
    watermark: float = 0.01
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    scheduling_policy: str = "fcfs"
    max_bypass: int = 16
    priority_ageing_seconds: float = 10.0
    isolate_tenants: bool = False

    @property
    def num_blocks(self) -> int:
        return self.pool_tokens // self.block_size

    def config(self) -> ReplayConfig:
        """Raises `ConfigurationError` for what makes no sense."""
        if self.block_size < 1 or not self.num_blocks:
            raise ConfigurationError(
                f"A pool of {self.pool_tokens} tokens holds no block of {self.block_size}.",
                hint="Give it more memory, or make the blocks smaller.",
            )
        return ReplayConfig(
            allocator=self.allocator,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            prefix_caching=self.prefix_caching,
            isolate_tenants=self.isolate_tenants,
            scheduler=SchedulerConfig(
                max_num_batched_tokens=self.max_num_batched_tokens,
                max_num_seqs=self.max_num_seqs,
                max_model_len=self.max_model_len,
                watermark=self.watermark,
                max_bypass=self.max_bypass,
                policy=cast(PolicyName, self.scheduling_policy),
                priority_ageing_seconds=self.priority_ageing_seconds,
            ),
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"num_blocks": self.num_blocks}


def _integer(text: str) -> int:
    return int(text.replace("_", ""))


def _share(text: str) -> float:
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _switch(text: str) -> bool:
    return {"on": True, "off": False}[text]


def _allocator(text: str) -> str:
    if text not in ALLOCATORS:
        raise ValueError
    return text


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting that a sweep may vary."""

    name: str
    """Of the field of `Settings`."""
    title: str
    parse: Callable[[str], Any]
    expects: str
    acts_on: tuple[Constraint, ...]
    """Constraints of which at least one must bind at some time for this setting to change when anything runs."""
    short: str = ""
    """Before a value in a cell's name."""
    heading: str = ""
    """Of a narrow column."""
    paged_only: bool = False
    """Contiguous memory ignores it."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def values(self, text: str) -> list[Any]:
        """ "1,16,256" → values, each once. Raises `ConfigurationError`."""
        values: list[Any] = []
        for entry in text.split(","):
            try:
                values.append(self.parse(entry.strip()))
            except (ValueError, KeyError):
                raise ConfigurationError(
                    f"{self.flag} {entry.strip()!r} is not understood.",
                    hint=f"Write {self.expects}; several are separated by commas.",
                ) from None
        return list(dict.fromkeys(values))

    def show_in(self, settings: Settings) -> str:
        """Its value in a cell; nothing where it has no effect."""
        ignored = self.paged_only and settings.allocator != PAGED
        return "" if ignored else self.show(getattr(settings, self.name))

    def show(self, value: Any) -> str:
        if isinstance(value, bool):
            return "on" if value else "off"
        if self.parse is _share:
            return f"{value:.4g}"
        return f"{value:,}" if isinstance(value, int) else str(value)


POLICIES = get_args(PolicyName)
TOKENS, SHARES = "whole numbers of tokens", "shares such as 0.01 or 5%"
WAITING: tuple[Constraint, ...] = ("blocks", "seats", "budget")


def _policy(text: str) -> str:
    if text not in POLICIES:
        raise ValueError
    return text


AXES: dict[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis("allocator", "allocator", _allocator, ", ".join(ALLOCATORS), ("blocks",), heading="allocator"),
        Axis("block_size", "block size", _integer, TOKENS, ("blocks",), "blocks of ", "block"),
        Axis("pool_tokens", "pool in tokens", _integer, TOKENS, ("blocks",), "pool ", "pool"),
        Axis("prefix_caching", "prefix cache", _switch, "on or off", (), "cache ", "cache", paged_only=True),
        Axis("watermark", "watermark", _share, SHARES, ("blocks",), "watermark ", "mark", paged_only=True),
        Axis("max_num_seqs", "most sequences", _integer, "whole numbers", ("seats",), "seqs ", "seqs"),
        Axis("max_num_batched_tokens", "token budget", _integer, TOKENS, ("budget",), "budget ", "budget"),
        Axis("scheduling_policy", "policy", _policy, ", ".join(POLICIES), WAITING, heading="policy"),
        Axis("max_bypass", "most bypasses", _integer, "whole numbers", ("blocks",), "bypass ", "bypass"),
    )
}


def combinations(base: Settings, varied: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """Every combination of the values, the first axis slowest; those that are the same system appear once.

    Contiguous memory has no prefix cache and ignores the watermark.
    """
    cells: dict[Settings, None] = {}
    for values in product(*varied.values()):
        settings = replace(base, **dict(zip(varied, values, strict=True)))
        if settings.allocator != PAGED:
            watermark = varied.get("watermark", [base.watermark])[0]
            settings = replace(settings, prefix_caching=False, watermark=watermark)
        cells[settings] = None
    return list(cells)


def default_comparison(base: Settings, *, shares: bool) -> list[Settings]:
    """Every allocator at the base's block size; then paged memory in blocks of other sizes.

    `shares`: the trace says which prompts begin alike, so the prefix cache is compared too.
    """
    allocators = combinations(base, {"allocator": [*ALLOCATORS[1:], PAGED], "prefix_caching": [False]})
    sizes = [1, 16, 128]
    if base.block_size not in sizes:
        sizes = sorted([base.block_size, *sizes])
    paged = combinations(base, {"allocator": [PAGED], "block_size": sizes, "prefix_caching": [shares]})
    return list(dict.fromkeys([*allocators, *paged]))


def varied_axes(cells: Sequence[Settings]) -> list[Axis]:
    """Axes of which `cells` have more than one value."""
    return [axis for axis in AXES.values() if len({getattr(cell, axis.name) for cell in cells}) > 1]


def label(settings: Settings, axes: Sequence[Axis]) -> str:
    """What sets the cell apart: "paged, blocks of 16"; the allocator where nothing does."""
    shown = [axis.short + text for axis in axes if (text := axis.show_in(settings))]
    return ", ".join(shown) or settings.allocator


def alike_but_for(cells: Sequence[Settings], axis: Axis) -> Iterator[list[int]]:
    """Places in `cells` of groups that differ in this axis alone; groups of one are left out."""
    groups: dict[Settings, list[int]] = {}
    for place, cell in enumerate(cells):
        groups.setdefault(replace(cell, **{axis.name: getattr(cells[0], axis.name)}), []).append(place)
    yield from (group for group in groups.values() if len(group) > 1)
