"""`looseleaf plan`: what of a model fits on a device, spelled out."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from looseleaf.cli.command import command
from looseleaf.cli.consoles import note, write
from looseleaf.cli.options import OutputOptions
from looseleaf.cli.trace_options import ReadingOptions

if TYPE_CHECKING:
    from looseleaf.cli.plan_traffic import PoolSearch
    from looseleaf.plan.answers import Answers
    from looseleaf.plan.capacity import Capacity, PlanSettings
    from looseleaf.plan.derivation import Section
    from looseleaf.plan.lengths import Lengths
    from looseleaf.plan.shape import ModelShape

MODEL, DEVICE, ENGINE, TRAFFIC = "Model", "Device", "Engine", "Traffic"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a plan is made from. The defaults of an engine's settings are Looseleaf's own."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="A config.json, a folder with one, a .gguf file, or the name of a published model, such as "
            "llama-3.1-8b.",
            rich_help_panel=MODEL,
        ),
    ] = None
    weights_dtype: Annotated[
        str | None,
        typer.Option(help="float32, bfloat16 or float16. Default: as published.", rich_help_panel=MODEL),
    ] = None
    quantization: Annotated[
        str | None,
        typer.Option(
            help="Format of the linear layers: none, fp8, int8, int4, mxfp4, nvfp4, or a GGUF block format (q8_0, "
            "q6_k, q5_k, q4_k, q4_1, q4_0). Default: as published.",
            rich_help_panel=MODEL,
        ),
    ] = None
    weight_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="All weights take this much, instead of the count.", rich_help_panel=MODEL),
    ] = None
    extra_weights: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Weights that are not counted, such as a vision part's.", rich_help_panel=MODEL
        ),
    ] = None
    hardware: Annotated[
        str | None,
        typer.Option(
            "--hardware",
            "-H",
            help="A device's name ([bold]--hardware list[/] shows all), its memory (24GiB), or both "
            "(epyc-9654:384GiB).",
            rich_help_panel=DEVICE,
        ),
    ] = None
    memory_utilization: Annotated[
        float, typer.Option(help="Share of the memory that may be used.", rich_help_panel=DEVICE)
    ] = 0.9
    reserve: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory of the driver and the runtime. Default: what was seen on a GPU; none elsewhere.",
            rich_help_panel=DEVICE,
        ),
    ] = None
    tensor_parallel_size: Annotated[
        int, typer.Option(help="Devices that share every layer.", rich_help_panel=DEVICE)
    ] = 1
    num_blocks: Annotated[
        int | None,
        typer.Option(help="The pool's blocks, where they are known already.", rich_help_panel=DEVICE),
    ] = None
    kv_cache_memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="The pool's bytes, where they are known already.", rich_help_panel=DEVICE),
    ] = None
    kv_cache_dtype: Annotated[
        str,
        typer.Option(
            help="auto (as the weights), float32, bfloat16, float16, fp8, int8 (with Looseleaf's scales), "
            "int8_per_token_head, fp8_per_token_head, fp8_ds_mla.",
            rich_help_panel=ENGINE,
        ),
    ] = "auto"
    block_size: Annotated[int, typer.Option(help="Token slots per block.", rich_help_panel=ENGINE)] = 16
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="Longest sequence, prompt and answer. Default: what the model knows; of a trace, what holds its "
            "longest request.",
            rich_help_panel=ENGINE,
        ),
    ] = None
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens per step.", rich_help_panel=ENGINE)] = 2048
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that may run at once.", rich_help_panel=ENGINE)] = 64
    keep_windows: Annotated[
        bool,
        typer.Option(
            "--keep-windows",
            help="Layers with a window keep the whole context, as in engines with one block table for all layers.",
            rich_help_panel=ENGINE,
        ),
    ] = False
    shareable_unit: Annotated[
        int | None,
        typer.Option(
            help="Tokens in whose multiples prefixes are shared. Default: a block, or what recurrent states ask for.",
            rich_help_panel=ENGINE,
        ),
    ] = None
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="prompt=N,output=N",
            help="The traffic's lengths; N-M: uniform between the two.",
            rich_help_panel=TRAFFIC,
        ),
    ] = None
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|SPEC",
            help="The traffic itself, instead of its lengths: a trace file, or what to generate; see "
            "[bold]looseleaf trace[/].",
            rich_help_panel=TRAFFIC,
        ),
    ] = None
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="ttft=2s,itl=100ms",
            help="With --trace: find the smallest pool that meets these latencies, by replay.",
            rich_help_panel=TRAFFIC,
        ),
    ] = None
    slo_share: Annotated[
        float, typer.Option(help="Share of the requests that must meet them.", rich_help_panel=TRAFFIC)
    ] = 0.99
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the plan as a sheet.", rich_help_panel=TRAFFIC)
    ] = None

    def settings(self) -> PlanSettings:
        """Raises `InvalidPlan` and `UnknownHardware`."""
        from looseleaf.plan.capacity import PlanSettings
        from looseleaf.plan.hardware import find_hardware, parse_size

        def size(text: str | None) -> int | None:
            return None if text is None else parse_size(text)

        return PlanSettings(
            hardware=None if self.hardware is None else find_hardware(self.hardware),
            memory_utilization=self.memory_utilization,
            reserve=size(self.reserve),
            weights_dtype=self.weights_dtype,
            quantization=self.quantization,
            weight_memory=size(self.weight_memory),
            extra_weights=size(self.extra_weights) or 0,
            kv_cache_dtype=self.kv_cache_dtype,
            kv_cache_memory=size(self.kv_cache_memory),
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            tensor_parallel_size=self.tensor_parallel_size,
            keep_windows=self.keep_windows,
            shareable_unit=self.shareable_unit,
        )


def register(app: typer.Typer) -> None:
    command(app, "plan")(plan)


def plan(options: PlanOptions, reading: ReadingOptions, output: OutputOptions) -> None:
    """Say what fits: from a model's configuration and a device to blocks, tokens and requests at once.

        looseleaf plan -m llama-3.1-8b -H rtx-4090 --max-model-len 32768 --lengths prompt=800,output=200

        looseleaf plan -m llama-3.1-8b -H rtx-4090 --trace chats.jsonl --slo ttft=2s,itl=100ms

    Every term is printed with where it comes from. An architecture that is not known is refused, not guessed. Ends
    with code 2 if not even one request of the maximum length fits.
    """
    from looseleaf.cli.plan_drawing import draw_hardware

    if options.hardware == "list":
        draw_hardware(as_json=output.json)
        return
    from looseleaf.cli.plan_traffic import lengths_of_trace, smallest_pool
    from looseleaf.plan.capacity import Capacity
    from looseleaf.plan.errors import InvalidPlan
    from looseleaf.plan.lengths import parse_lengths
    from looseleaf.replay.smallest_pool import TargetOutOfReach

    if options.model is None:
        raise InvalidPlan("No model is given.", hint="Give --model: a config.json, or a name such as llama-3.1-8b.")
    if options.trace is not None and options.lengths is not None:
        raise InvalidPlan("Both --trace and --lengths are given.", hint="Give one of them.")
    if options.trace is None and options.slo is not None:
        raise InvalidPlan("--slo is given without a trace.", hint="Give --trace: latencies are found by replay.")
    shape, settings = find_shape(options.model, options.settings())
    if options.trace is None:
        lengths = None if options.lengths is None else parse_lengths(options.lengths)
        _report(options, output, Capacity(shape, settings), lengths, None)
        return
    source = reading.source(options.trace)
    lengths, extent = lengths_of_trace(source)
    if settings.max_model_len is None:
        settings = replace(settings, max_model_len=min(shape.max_len, extent.model_len))
        note(f"max_model_len {settings.max_model_len:,}: the power of two that holds the longest request.")
    capacity = Capacity(shape, settings)
    search, out_of_reach = None, None
    if options.slo is not None and capacity.fits:
        try:
            search = smallest_pool(capacity, source, extent, lengths, options.slo, options.slo_share)
        except TargetOutOfReach as error:
            out_of_reach = error
    _report(options, output, capacity, lengths, search)
    if out_of_reach is not None:  # the last word, after what fits
        raise out_of_reach


def _report(
    options: PlanOptions,
    output: OutputOptions,
    capacity: Capacity,
    lengths: Lengths | None,
    search: PoolSearch | None,
) -> None:
    """Prints the plan, and writes the sheet. Raises `DoesNotFit` if not even one request does."""
    from looseleaf.cli.plan_drawing import draw_plan
    from looseleaf.plan.answers import answers
    from looseleaf.plan.derivation import derivation
    from looseleaf.plan.errors import DoesNotFit
    from looseleaf.plan.sheet import sheet_rows, write_sheet

    sections, found = derivation(capacity), answers(capacity, lengths)
    if options.csv is not None:
        given = [(name, value) for name, value in asdict(options).items() if value is not None and name != "csv"]
        rows = sheet_rows(given, sections, found)
        write_sheet(options.csv, rows if search is None else [*rows, *search.sheet_rows()])
        note(f"Wrote {options.csv}.")
    if output.json:
        plain = as_json(capacity, sections, found, lengths)
        write(json.dumps(plain if search is None else plain | {"smallest_pool": search.as_json()}, indent=2) + "\n")
    else:
        draw_plan(capacity, sections, found)
        if search is not None:
            search.draw()
    if not capacity.fits:
        raise DoesNotFit(
            needed=capacity.layout.request_bytes(capacity.max_model_len),
            available=max(capacity.left_for_cache, 0),
            max_model_len=capacity.max_model_len,
            longest=capacity.longest_context,
            change=found.changes[0].setting if found.changes else None,
        )


def find_shape(text: str, settings: PlanSettings) -> tuple[ModelShape, PlanSettings]:
    """The model, and the settings with what its file says of the weights (a GGUF file's own encodings)."""
    from looseleaf.plan.known_models import find_model

    if not text.endswith(".gguf"):
        return find_model(text), settings
    from looseleaf.cli.gguf_shape import read_gguf_shape

    shape, weight_bytes = read_gguf_shape(Path(text))
    if settings.weight_memory is None and settings.quantization is None and settings.weights_dtype is None:
        settings = replace(settings, weight_memory=weight_bytes)
    return shape, settings


def as_json(capacity: Capacity, sections: list[Section], found: Answers, lengths: Lengths | None) -> dict[str, Any]:
    """Everything that is printed, and the figures by fixed names."""
    layout, settings = capacity.layout, capacity.settings
    plain = asdict(settings)
    if plain["hardware"] is not None:
        plain["hardware"] = {key: plain["hardware"][key] for key in ("name", "memory_bytes", "bandwidth", "source")}
    figures = {
        "fits": capacity.fits,
        "max_model_len": capacity.max_model_len,
        "num_blocks": capacity.num_blocks,
        "block_bytes": layout.block_bytes,
        "pool_bytes": capacity.pool_bytes,
        "tokens": capacity.tokens,
        "concurrency_at_max_model_len": capacity.concurrency(capacity.max_model_len),
        "longest_context": capacity.longest_context,
        "parameters": capacity.arithmetic.parameters.total,
        "weight_bytes": capacity.weight_bytes,
        "activation_bytes": capacity.activations.nbytes,
        "kv_bytes_per_token": layout.bytes_per_token,
        "kv_slope_per_token": layout.slope,
        "state_bytes_per_request": layout.state_bytes,
        "request_bytes_at_max_model_len": layout.request_bytes(capacity.max_model_len),
        "fixed_bytes_at_max_model_len": layout.fixed_bytes(capacity.max_model_len),
        "shareable_unit": capacity.shareable_unit,
    }
    if lengths is not None:
        figures |= {
            "concurrency_at_lengths": capacity.concurrency(lengths.on_average),
            "concurrency_at_ends": capacity.concurrency(lengths.at_end),
            "most_shareable_tokens": capacity.most_shareable(round(lengths.prompt)),
        }
    return {
        "model": capacity.shape.name,
        "architecture": capacity.shape.architecture,
        "notes": list(capacity.shape.notes),
        "settings": plain,
        "figures": figures,
        "derivation": [asdict(section) for section in sections],
        "answers": [asdict(term) for term in found.terms],
        "changes": [asdict(change) for change in found.changes],
    }
