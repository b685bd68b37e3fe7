"""`looseleaf bench`: offline throughput of a workload file, under one setting or several side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer
from rich.table import Table
from typer.core import TyperGroup

from looseleaf.cli import bench_serve
from looseleaf.cli.command import command
from looseleaf.cli.consoles import note, stdout, write
from looseleaf.cli.failed_answers import exit_if_any_failed, failures
from looseleaf.cli.options import MEMORY, EngineOptions, OutputOptions
from looseleaf.errors import InvalidRequest

if TYPE_CHECKING:
    from looseleaf.engine.config import EngineConfig
    from looseleaf.engine.engine import Engine
    from looseleaf.engine.generation_request import GenerationRequest
    from looseleaf.engine.workload import WorkloadRun

Runs = dict[str, "list[WorkloadRun]"]
"""The runs of one test by setting: the allocator's name, the KV dtype's, or both."""

WARMUP_TOKENS = 8
CACHING = {"on": True, "off": False}


OFFLINE = "offline"


class _BenchGroup(TyperGroup):
    """What is none of its commands is for `offline`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = [OFFLINE, *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    group = typer.Typer(cls=_BenchGroup, no_args_is_help=True, rich_markup_mode="rich")
    command(group, OFFLINE, omit=("enable_prefix_caching",))(bench)
    bench_serve.register(group)
    app.add_typer(group, name="bench", help=_HELP)


_HELP = """Measure throughput: of the engine alone, or of a running server.

[bold]looseleaf bench FILE[/] is short for [bold]looseleaf bench offline FILE[/].
"""


def bench(
    engine: EngineOptions,
    output: OutputOptions,
    workload: Annotated[Path, typer.Argument(help="JSON: tests by name, each a list of draws, as described above.")],
    test: Annotated[list[str] | None, typer.Option(help="A test of the file; may be repeated. Default: all.")] = None,
    runs: Annotated[int, typer.Option(help="Draws of each test that are run.", min=1)] = 3,
    max_requests: Annotated[
        int | None, typer.Option(help="Only the first requests of each draw, for a quick look.", min=1)
    ] = None,
    allocator: Annotated[
        list[str] | None,
        typer.Option(
            help="paged, contiguous-max, contiguous-pow2 or contiguous-oracle; may be repeated to compare them with "
            "the same memory and the same requests. Default: paged.",
            rich_help_panel=MEMORY,
        ),
    ] = None,
    kv_cache_dtype: Annotated[
        list[str] | None,
        typer.Option(
            help="auto, float32, bfloat16 or int8; may be repeated to compare them in the same number of bytes. "
            "Default: auto.",
            rich_help_panel=MEMORY,
        ),
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(metavar="NAME", help="One of --lora, for requests that the file gives none.")
    ] = None,
    prefix_caching: Annotated[
        list[str] | None,
        typer.Option(
            metavar="on|off",
            help="Whether requests that begin alike share blocks; both to compare. Default: on.",
            rich_help_panel=MEMORY,
        ),
    ] = None,
) -> None:
    r"""Measure throughput and use of memory on a workload file.

        looseleaf bench workload.json --test T3 --allocator paged --allocator contiguous-max

        looseleaf bench workload.json --kv-cache-memory 64MiB --kv-cache-dtype bfloat16 --kv-cache-dtype int8

        looseleaf bench workload.json --test T4 --prefix-caching on --prefix-caching off

    All requests of a draw arrive at once; each gets exactly its number of tokens. Settings take turns draw by
    draw, so that a machine that slows down slows all of them.

    The file: {"T3": [DRAW, …], "warmup": [REQUEST, …]}. A REQUEST is {"prompt": \[token ids], "n_out": 16} with "n",
    "temperature" and "adapter" if wanted; a DRAW is a request, a list of them, or {"prefix": \[ids], "suffixes":
    [\[ids], …], "n_out": 32}.
    """
    from looseleaf.engine.llm import load_engine, progress_bar
    from looseleaf.engine.workload_file import load_workload

    configs = _configs(
        engine, allocator or [engine.allocator], kv_cache_dtype or [engine.kv_cache_dtype], prefix_caching or ["on"]
    )
    work = load_workload(workload)
    tests = {
        name: [_adapted(draw[:max_requests], adapter) for draw in work.draws(name)[:runs]]
        for name in test or work.tests
    }
    engine.use_threads()
    engines = dict(
        zip(configs, _siblings(load_engine(engine.model, next(iter(configs.values()))), configs.values()), strict=True)
    )

    total = len(configs) * sum(len(draw) for draws in tests.values() for draw in draws)
    results: dict[str, Runs] = {}
    with progress_bar("Running", total, shown=not output.quiet) as advance:
        for each in engines.values():
            _check(each, tests)
        for each in engines.values():
            _warm_up(each, _adapted(work.warmup, adapter))
        for name, draws in tests.items():
            results[name] = run_test(engines, draws, advance)
    if output.json:
        write(json.dumps({name: as_json(engines, of_test) for name, of_test in results.items()}, indent=2) + "\n")
    else:
        for name, of_test in results.items():
            print_table(name, engines, of_test)
    exit_if_any_failed(run for of_test in results.values() for each in of_test.values() for run in each)


def _configs(
    engine: EngineOptions, allocators: Sequence[str], kv_cache_dtypes: Sequence[str], prefix_caching: Sequence[str]
) -> dict[str, EngineConfig]:
    """Every combination, under a name that says what differs. Raises `InvalidRequest`."""
    for each in prefix_caching:
        if each not in CACHING:
            raise InvalidRequest(f"--prefix-caching {each!r} is unknown.", hint="Write on or off.")
    varied = [list(dict.fromkeys(values)) for values in (allocators, kv_cache_dtypes, prefix_caching)]
    configs = {}
    for allocator, dtype, caching in product(*varied):
        named = zip((allocator, dtype, f"cache {caching}"), varied, strict=True)
        name = " ".join(value for value, values in named if len(values) > 1) or allocator
        configs[name] = replace(
            engine, allocator=allocator, kv_cache_dtype=dtype, enable_prefix_caching=CACHING[caching]
        ).config()
    return configs


def _siblings(first: Engine, configs: Iterable[EngineConfig]) -> Iterator[Engine]:
    """An engine per configuration, on the same weights. They run in turns, so one KV cache serves all of a dtype;
    those of other dtypes have as many bytes."""
    from looseleaf.engine.engine import Engine
    from looseleaf.engine.footprint import check_footprint
    from looseleaf.engine.kv_pool import size_pool

    by_dtype = {first.pool.kv_dtype: first}
    for config in configs:
        like = by_dtype.get(config.torch_kv_dtype)
        if config == first.config:
            yield first
        elif like is not None:
            yield Engine(first.model, first.tokenizer, config, like.pool, kv_cache=like.kv_cache)
        else:
            config = replace(config, kv_cache_memory=first.pool.nbytes)
            free = psutil.virtual_memory().available
            pool = size_pool(first.model.config, config, available=free)
            check_footprint(first.model.config, config, pool, free, first.model.max_lora_rank)
            note(str(pool))
            by_dtype[pool.kv_dtype] = Engine(first.model, first.tokenizer, config, pool)
            yield by_dtype[pool.kv_dtype]


def _check(engine: Engine, tests: dict[str, list[list[GenerationRequest]]]) -> None:
    """Refuse what can never run before anything is measured."""
    for name, draws in tests.items():
        for draw, requests in enumerate(draws):
            engine.read_requests(requests, f"{name}[{draw}]")


def _warm_up(engine: Engine, requests: Sequence[GenerationRequest]) -> None:
    from looseleaf.engine.workload import run_workload

    if requests:
        run_workload(engine, [r._replace(params=replace(r.params, max_tokens=WARMUP_TOKENS)) for r in requests])


def _adapted(requests: Sequence[GenerationRequest], adapter: str | None) -> list[GenerationRequest]:
    """The requests, with `adapter` where they have none."""
    return [each._replace(adapter=each.adapter or adapter) for each in requests]


def run_test(
    engines: dict[str, Engine], draws: Sequence[Sequence[GenerationRequest]], advance: Callable[[], None]
) -> Runs:
    """Each draw under each setting, in turns; no draw finds what another one left in the prefix cache."""
    from looseleaf.engine.workload import run_workload

    runs: Runs = {name: [] for name in engines}
    for draw in draws:
        for name, engine in engines.items():
            engine.reset_prefix_cache()
            runs[name].append(run_workload(engine, draw, on_finished=lambda _index, _output: advance()))
    return runs


def same_tokens(engines: Mapping[str, Engine], runs: Runs) -> bool:
    """Whether every setting gave every request the same tokens. (Another KV dtype may give others.)"""
    by_dtype: dict[Any, list[list[list[int]]]] = {}
    for name, each in runs.items():
        tokens = [o.token_ids for run in each for r in run.outputs for o in r.outputs]
        by_dtype.setdefault(engines[name].pool.kv_dtype, []).append(tokens)
    return all(each == same[0] for same in by_dtype.values() for each in same)


def as_json(engines: Mapping[str, Engine], runs: Runs) -> dict[str, Any]:
    return {
        "same_tokens": same_tokens(engines, runs),
        "settings": {
            name: {
                "allocator": engines[name].config.allocator,
                "prefix_caching": engines[name].prefix_cache_counts() is not None,
                "kv_cache_dtype": str(engines[name].pool.kv_dtype).removeprefix("torch."),
                "kv_cache_bytes": engines[name].pool.nbytes,
                "kv_bytes_per_token": engines[name].pool.bytes_per_token,
                "runs": [_run_as_json(run) for run in each],
            }
            for name, each in runs.items()
        },
    }


def _run_as_json(run: WorkloadRun) -> dict[str, Any]:
    return {
        "requests": len(run.outputs),
        "failed_answers": len(failures(run)),
        "seconds": run.seconds,
        "prompt_tokens": run.prompt_tokens,
        "cached_prompt_tokens": run.cached_prompt_tokens,
        "output_tokens": run.output_tokens,
        "output_tokens_per_second": run.output_tokens_per_second,
        "median_first_token_seconds": run.median_first_token_seconds,
        "prompt_tokens_per_second": run.prompt_tokens_per_second,
        "decode_tokens_per_second": run.decode_tokens_per_second,
        "steps": run.steps,
        "preemptions": run.preemptions,
        **asdict(run.pool),
    }


def print_table(test: str, engines: Mapping[str, Engine], runs: Runs) -> None:
    """Rows are figures, columns settings: medians over the draws, with the range where there are several."""
    first = next(iter(runs.values()))
    table = Table(
        f"{test}: {len(first[0].outputs)} requests × {len(first)}",
        *runs,
        box=None,
        header_style="bold",
        pad_edge=False,
        padding=(0, 1),
    )
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("KV cache, bytes per token", *(f"{engines[name].pool.bytes_per_token:,}" for name in runs))
    for label, figure, shape in FIGURES:
        table.add_row(label, *(_spread([figure(run) for run in each], shape) for each in runs.values()))
    stdout().print(table, markup=False)  # the file's author named the test
    dtypes = {each.pool.kv_dtype for each in engines.values()}
    if len(engines) > len(dtypes):
        settings = "settings" if len(dtypes) == 1 else "settings of one KV dtype"
        alike = f"All {settings} gave the same tokens."
        stdout().print(alike if same_tokens(engines, runs) else f"[red]Not all {settings} gave the same tokens.[/]")
    stdout().print()


FIGURES: tuple[tuple[str, Callable[[WorkloadRun], float | None], str], ...] = (
    ("output tokens/s", lambda run: run.output_tokens_per_second, ".1f"),
    ("first token, s (median)", lambda run: run.median_first_token_seconds, ".2f"),
    ("prompt tokens/s", lambda run: run.prompt_tokens_per_second, ".0f"),
    ("prompt tokens from cache", lambda run: run.cached_prompt_tokens / run.prompt_tokens, ".1%"),
    ("decode tokens/s per sample", lambda run: run.decode_tokens_per_second, ".1f"),
    ("sequences at once, mean", lambda run: run.pool.mean_sequences, ".1f"),
    ("sequences at once, peak", lambda run: run.pool.peak_sequences, ".0f"),
    ("held slots with tokens", lambda run: run.pool.held_slots_with_tokens, ".1%"),
    ("pool slots with tokens", lambda run: run.pool.pool_slots_with_tokens, ".1%"),
    ("blocks at most", lambda run: run.pool.peak_blocks, ",.0f"),
    ("preemptions", lambda run: run.preemptions, ",.0f"),
    ("steps", lambda run: run.steps, ",.0f"),
    ("answers that failed", lambda run: len(failures(run)), ",.0f"),
)


def _spread(measured: Sequence[float | None], shape: str) -> str:
    values = [value for value in measured if value is not None]
    if not values:
        return "–"
    low, middle, high = (format(value, shape) for value in (min(values), median(values), max(values)))
    return middle if low == high else f"{middle} ({low}–{high})"
