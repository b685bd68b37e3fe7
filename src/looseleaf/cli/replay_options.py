"""The options of `looseleaf replay`. Those that a sweep can vary take several values, separated by commas."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from looseleaf.errors import ConfigurationError

SYSTEM, SWEEP, RESULTS = "System", "What is compared (several values: commas)", "Results"


@dataclass(frozen=True, slots=True)
class SystemOptions:
    """What serves: it gives the pool, where none is given, and what a step costs."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="A name, a config.json, or a folder with one. Default: llama-3.1-8b.",
            rich_help_panel=SYSTEM,
        ),
    ] = None
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware",
            "-H",
            help="A device by name ([bold]looseleaf plan --hardware list[/] shows all). Default: a100-40gb.",
            rich_help_panel=SYSTEM,
        ),
    ] = None
    cost: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What a step costs, measured by [bold]looseleaf calibrate[/] (JSON) or a table (CSV), instead of the "
            "figures of the hardware.",
            rich_help_panel=SYSTEM,
        ),
    ] = None
    kv_cache_dtype: Annotated[str, typer.Option(help="Of keys and values.", rich_help_panel=SYSTEM)] = "auto"
    tensor_parallel_size: Annotated[int, typer.Option(help="Devices per model.", min=1, rich_help_panel=SYSTEM)] = 1
    memory_utilization: Annotated[
        float,
        typer.Option(help="Share of the device's memory for weights and keys and values.", rich_help_panel=SYSTEM),
    ] = 0.9


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The settings of the cells. None: the default of `Settings`, or what the system gives."""

    allocator: Annotated[
        str | None,
        typer.Option(
            help="paged, contiguous-max, contiguous-pow2, contiguous-oracle. Default: paged.", rich_help_panel=SWEEP
        ),
    ] = None
    block_size: Annotated[
        str | None, typer.Option(help="Token slots per block. Default: 16.", rich_help_panel=SWEEP)
    ] = None
    pool_tokens: Annotated[
        str | None,
        typer.Option(help="Token slots of the pool. Default: what the hardware has left.", rich_help_panel=SWEEP),
    ] = None
    num_blocks: Annotated[
        str | None,
        typer.Option(help="The same in blocks (of the first --block-size).", rich_help_panel=SWEEP),
    ] = None
    prefix_caching: Annotated[
        str | None,
        typer.Option(
            metavar="on,off", help="Whether prompts that begin alike share blocks. Default: on.", rich_help_panel=SWEEP
        ),
    ] = None
    watermark: Annotated[
        str | None,
        typer.Option(help="Share of the pool that an admission leaves free. Default: 0.01.", rich_help_panel=SWEEP),
    ] = None
    max_num_seqs: Annotated[
        str | None,
        typer.Option(
            help="Sequences that may run at once. Default: 256, for a GPU; [bold]looseleaf serve[/] has 64.",
            rich_help_panel=SWEEP,
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        str | None, typer.Option(help="Tokens per step. Default: 2048.", rich_help_panel=SWEEP)
    ] = None
    scheduling_policy: Annotated[
        str | None, typer.Option(help="fcfs, priority, fair. Default: fcfs.", rich_help_panel=SWEEP)
    ] = None
    max_bypass: Annotated[
        str | None,
        typer.Option(
            help="Smaller requests that may pass one that waits for memory. Default: 16.", rich_help_panel=SWEEP
        ),
    ] = None

    def varied(self) -> dict[str, list[Any]]:
        """Values by axis, of those that were given. Raises `ConfigurationError`."""
        from looseleaf.replay.settings import AXES, DEFAULT_BLOCK_SIZE

        given = {name: text for name in AXES if (text := getattr(self, name)) is not None}
        values = {name: AXES[name].values(text) for name, text in given.items()}
        if self.num_blocks is not None:
            if self.pool_tokens is not None:
                raise ConfigurationError("--pool-tokens and --num-blocks both say how large the pool is.")
            size = values.get("block_size", [DEFAULT_BLOCK_SIZE])[0]
            blocks = AXES["pool_tokens"].values(self.num_blocks)
            values["pool_tokens"] = [count * size for count in blocks]
        for name, least in (("block_size", 1), ("pool_tokens", 1), ("max_num_seqs", 1), ("max_num_batched_tokens", 1)):
            for value in values.get(name, ()):
                if value < least:
                    raise ConfigurationError(f"{AXES[name].flag} is {value} but must be at least {least}.")
        return values
