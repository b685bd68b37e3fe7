"""`looseleaf quality`: what a setting costs on real text, measured against a baseline."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from looseleaf.cli.command import command
from looseleaf.cli.consoles import note, stdout, write
from looseleaf.cli.options import EngineOptions, OutputOptions
from looseleaf.errors import InvalidRequest

if TYPE_CHECKING:
    from looseleaf.engine.config import EngineConfig
    from looseleaf.engine.engine import Engine
    from looseleaf.engine.quality import Comparison, TeacherForcing

TEXT, BASELINE = "Text", "Baseline"
SETTINGS = ("dtype", "quantization", "kv_cache_dtype")
_FIXED_BY_THE_READING = ("kv_cache_memory", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
_WITHOUT_MEANING = ("lora", "allocator", "watermark", "max_bypass", "engine_seed")


def register(app: typer.Typer) -> None:
    command(app, "quality", omit=(*_FIXED_BY_THE_READING, *_WITHOUT_MEANING))(quality)


def quality(
    engine: EngineOptions,
    output: OutputOptions,
    text: Annotated[
        Path | None,
        typer.Option(help="A UTF-8 text. Default: Python's own documentation.", rich_help_panel=TEXT),
    ] = None,
    tokens: Annotated[
        int, typer.Option(help="Tokens to read, in windows from all over the text.", min=1, rich_help_panel=TEXT)
    ] = 8192,
    window: Annotated[
        int, typer.Option(help="Tokens of a window: the longest context.", min=1, rich_help_panel=TEXT)
    ] = 1024,
    chunk: Annotated[int, typer.Option(help="Tokens of a prefill chunk.", min=1, rich_help_panel=TEXT)] = 256,
    decodes: Annotated[
        int,
        typer.Option(help="Tokens at each window's end that are read one by one.", min=0, rich_help_panel=TEXT),
    ] = 128,
    baseline_dtype: Annotated[
        str | None, typer.Option(help="Default: that of --dtype.", rich_help_panel=BASELINE)
    ] = None,
    baseline_quantization: Annotated[str, typer.Option(help="As --quantization.", rich_help_panel=BASELINE)] = "none",
    baseline_kv_cache_dtype: Annotated[
        str | None,
        typer.Option(
            help="Default: bfloat16 where --kv-cache-dtype is int8, else the same as that.", rich_help_panel=BASELINE
        ),
    ] = None,
) -> None:
    """Measure what a setting costs: how far its next-token distributions are from a baseline's on real text.

        looseleaf quality --kv-cache-dtype int8

        looseleaf quality --quantization int8 --text book.txt

    Both read the same tokens through their paged KV caches, in chunks and then token by token, and are compared at
    every position. KL(baseline || candidate), in nats, is what is lost by taking the candidate's distribution for the
    baseline's; top-1 agreement is how often both find the same token the most likely.
    """
    from looseleaf.engine.llm import progress_bar
    from looseleaf.engine.quality import TeacherForcing, compare

    reading = TeacherForcing(window=window, chunk=chunk, decodes=min(decodes, window))
    source, content = _read(text)
    if baseline_kv_cache_dtype is None:
        baseline_kv_cache_dtype = "bfloat16" if engine.kv_cache_dtype == "int8" else engine.kv_cache_dtype
    settings = (
        replace(
            engine,
            dtype=baseline_dtype or engine.dtype,
            quantization=baseline_quantization,
            kv_cache_dtype=baseline_kv_cache_dtype,
        ),
        engine,
    )
    configs = [each.config() for each in settings]
    engine.use_threads()
    engines = _load(engine.model, configs, reading)
    windows = reading.cut(engines[0].tokenizer.encode(content), tokens)
    steps = len(reading.steps()) * -(-len(windows) // reading.windows_at_once)
    with progress_bar("Reading", steps, shown=not output.quiet) as advance:
        compared = compare(engines[0], engines[1], windows, reading, advance)
    if output.json:
        write(json.dumps(as_json(source, windows[:, 1:].numel(), engines, compared), indent=2) + "\n")
        return
    print_table(engines, compared)
    note(
        f"{len(compared.divergence):,} positions of {source}, in {len(windows)} windows of {window:,} tokens, the last "
        f"{reading.decodes:,} of each read one by one."
    )


def _read(text: Path | None) -> tuple[str, str]:
    """What the text is called, and the text."""
    if text is None:
        from pydoc_data.topics import topics

        return f"Python {platform.python_version()}'s documentation", "\n\n".join(
            topics[name] for name in sorted(topics)
        )
    try:
        return str(text), text.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"The text {text} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{text} is no UTF-8 text: byte {error.start} is wrong.") from error


def _load(model: str, configs: Sequence[EngineConfig], reading: TeacherForcing) -> list[Engine]:
    """The baseline's engine and the candidate's, on the same weights where the settings allow it."""
    from looseleaf.engine.engine import Engine
    from looseleaf.engine.kv_pool import bytes_of_block, size_pool
    from looseleaf.engine.llm import load_engine
    from looseleaf.models.loader import load_config
    from looseleaf.models.store import resolve_model

    path = resolve_model(model).path
    shape = load_config(path)
    fitted = [reading.engine_config(config, bytes_of_block(shape, config)) for config in configs]
    first = load_engine(path, fitted[0])
    if all(getattr(fitted[0], name) == getattr(fitted[1], name) for name in ("dtype", "quantization")):
        return [first, Engine(first.model, first.tokenizer, fitted[1], size_pool(shape, fitted[1], available=0))]
    return [first, load_engine(path, fitted[1])]


def _settings(engine: Engine) -> dict[str, str]:
    """What the engine really runs with."""
    return {
        "dtype": str(engine.config.torch_dtype).removeprefix("torch."),
        "quantization": engine.config.quantization,
        "kv_cache_dtype": str(engine.pool.kv_dtype).removeprefix("torch."),
    }


def as_json(source: str, tokens: int, engines: Sequence[Engine], compared: Comparison) -> dict[str, Any]:
    low, high = compared.agreement.interval
    sides = zip(
        ("baseline", "candidate"), engines, (compared.baseline_perplexity, compared.candidate_perplexity), strict=True
    )
    return {
        "text": source,
        "tokens": tokens,
        "kl_nats": {
            "direction": "baseline || candidate",
            "mean": float(compared.divergence.mean()),
            "median": compared.divergence_at(0.5),
            "p95": compared.divergence_at(0.95),
            "max": compared.divergence_at(1.0),
        },
        "top1_agreement": {"share": compared.agreement.share, "low95": low, "high95": high},
        **{
            side: {
                **_settings(engine),
                "perplexity": perplexity,
                "kv_bytes_per_token": engine.pool.bytes_per_token,
                "weight_bytes": engine.model.nbytes,
            }
            for side, engine, perplexity in sides
        },
    }


def print_table(engines: Sequence[Engine], compared: Comparison) -> None:
    from looseleaf.engine.config import format_bytes

    table = Table("", "baseline", "candidate", box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    settings = [_settings(engine) for engine in engines]
    for name in SETTINGS:
        table.add_row(name.replace("_", " "), *(each[name] for each in settings))
    table.add_row("perplexity", f"{compared.baseline_perplexity:.4f}", f"{compared.candidate_perplexity:.4f}")
    table.add_row("KV cache, bytes per token", *(f"{each.pool.bytes_per_token:,}" for each in engines))
    table.add_row("weights", *(format_bytes(each.model.nbytes) for each in engines))
    console = stdout()
    console.print(table)
    low, high = compared.agreement.interval
    console.print(
        f"KL(baseline || candidate), nats: mean {compared.divergence.mean():.6f}, 95 % "
        f"{compared.divergence_at(0.95):.6f}, max {compared.divergence_at(1.0):.4f}",
        soft_wrap=True,
    )
    console.print(
        f"Top-1 agreement: {compared.agreement.share:.2%} (95 % interval {low:.2%} to {high:.2%})", soft_wrap=True
    )
