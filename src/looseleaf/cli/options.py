"""The options that commands share, each group a dataclass that knows what the engine makes of it.

Nothing here imports torch: `looseleaf --help` must answer at once. The defaults repeat those of `EngineConfig`
and `SamplingParams`; a test holds them equal, and sees to it that no setting is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from looseleaf.engine.adapter_names import parse_lora
from looseleaf.engine.sampling_errors import InvalidGrammar, InvalidParameter
from looseleaf.engine.sampling_params import DEFAULT_MAX_TOKENS, SamplingParams
from looseleaf.models.store import DEFAULT_MODEL

if TYPE_CHECKING:
    from looseleaf.engine.config import EngineConfig

MODEL, MEMORY, SCHEDULING, SAMPLING, OUTPUT = "Model", "Memory", "Scheduling", "Sampling", "Output"
NO_LIMIT, AUTO = "none", "auto"


def count_or_none(value: int | str | None) -> int | None:
    """A number, or None for "none"."""
    if value is None or value == NO_LIMIT:
        return None
    try:
        return int(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is neither a whole number nor {NO_LIMIT!r}.") from None


def length_or_auto(value: int | str | None) -> int | None:
    """A number of tokens, or None for "auto"."""
    try:
        return None if value is None or value == AUTO else int(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is neither a whole number nor {AUTO!r}.") from None


def parse_early_stopping(value: bool | str) -> bool | str:
    """ "true" or "false" as such; anything else is left for `SamplingParams` to check."""
    return {"true": True, "false": False}.get(str(value).lower(), value)


def parse_logit_bias(entries: Sequence[str]) -> dict[str, float] | None:
    """["50256=-100", …] → {"50256": -100.0, …}; None for nothing."""
    biases: dict[str, float] = {}
    for entry in entries:
        token_id, _, bias = entry.partition("=")
        try:
            biases[token_id.strip()] = float(bias)
        except ValueError:
            raise InvalidParameter("logit_bias", entry, "TOKEN_ID=BIAS, for example 198=-5") from None
    return biases or None


def read_schema(path: str) -> str:
    """The text of a JSON schema. Raises `InvalidGrammar`."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidGrammar(f"The JSON schema cannot be read: {error}.") from error


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Which model, and every setting of `EngineConfig`."""

    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="An alias (see [bold]looseleaf models[/]), a folder, a .gguf file, or organisation/model on the hub.",
            rich_help_panel=MODEL,
        ),
    ] = DEFAULT_MODEL
    dtype: Annotated[
        str,
        typer.Option(
            help="float32, bfloat16, or auto: bfloat16 where the processor multiplies it natively, else float32.",
            rich_help_panel=MODEL,
        ),
    ] = "auto"
    quantization: Annotated[
        str,
        typer.Option(
            help="Weights: none (as published), int8 (rounded when loaded), or gguf (a GGUF file's own 4- and 8-bit "
            "blocks, kept as they are). [bold]looseleaf quality[/] measures what it costs.",
            rich_help_panel=MODEL,
        ),
    ] = "none"
    lora: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="A LoRA adapter that requests can ask for by NAME: the folder that peft saved. May be repeated.",
            rich_help_panel=MODEL,
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            help="Processor threads to compute with. Default: OMP_NUM_THREADS, or one per core that may be used.",
            min=1,
            rich_help_panel=MODEL,
        ),
    ] = None
    kv_cache_dtype: Annotated[
        str,
        typer.Option(
            help="How keys and values are held: float32, bfloat16, int8 (twice the tokens of bfloat16), or auto: as "
            "--dtype.",
            rich_help_panel=MEMORY,
        ),
    ] = "auto"
    kv_cache_memory: Annotated[
        str,
        typer.Option(
            help="Memory for keys and values: 2GiB, 800MB, or a share of the free memory such as 25%.",
            rich_help_panel=MEMORY,
        ),
    ] = "10%"
    lock_memory: Annotated[
        bool,
        typer.Option(
            "--lock-memory",
            help="Keep keys and values in physical memory, never swapped out; an error where that is not allowed.",
            rich_help_panel=MEMORY,
        ),
    ] = False
    block_size: Annotated[int, typer.Option(help="Token slots per block.", rich_help_panel=MEMORY)] = 16
    allocator: Annotated[
        str,
        typer.Option(
            help="How memory is given out: paged, or one to compare it with: contiguous-max, contiguous-pow2, "
            "contiguous-oracle. The tokens are the same under each.",
            rich_help_panel=MEMORY,
        ),
    ] = "paged"
    enable_prefix_caching: Annotated[
        bool,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Keep the keys and values of ended requests while there is room, and share them with requests that "
            "begin alike.",
            rich_help_panel=MEMORY,
        ),
    ] = True
    cascade_attention: Annotated[
        str,
        typer.Option(
            help="Whether blocks that sequences share are read once for all of them: auto (where that is faster), on "
            "or off. The answers are the same.",
            rich_help_panel=MEMORY,
        ),
    ] = "auto"
    max_pinned_share: Annotated[
        float,
        typer.Option(help="Share of the pool that pinned prefixes may keep from eviction.", rich_help_panel=MEMORY),
    ] = 0.25
    watermark: Annotated[
        float,
        typer.Option(
            help="Share of the pool that an admission leaves free, so that those that run can grow.",
            rich_help_panel=MEMORY,
        ),
    ] = 0.01
    max_model_len: Annotated[
        # Any: Typer takes no parser for a union.
        Any,
        typer.Option(
            parser=length_or_auto,
            metavar="N|auto",
            help="Longest sequence, prompt and answer, in tokens; auto, the default: what the model knows and the "
            "pool holds.",
            rich_help_panel=SCHEDULING,
        ),
    ] = None
    max_num_seqs: Annotated[int, typer.Option(help="Sequences that may run at once.", rich_help_panel=SCHEDULING)] = 64
    max_num_batched_tokens: Annotated[
        int,
        typer.Option(help="Tokens per step: longer prompts are computed in chunks.", rich_help_panel=SCHEDULING),
    ] = 2048
    max_bypass: Annotated[
        int,
        typer.Option(
            help="Smaller requests that may pass a request that waits for memory, before all wait for it.",
            rich_help_panel=SCHEDULING,
        ),
    ] = 16
    scheduling_policy: Annotated[
        str,
        typer.Option(
            help="Who goes first: fcfs (first come first served), priority (requests name theirs), or fair (tenants "
            "get shares by their weights).",
            rich_help_panel=SCHEDULING,
        ),
    ] = "fcfs"
    priority_ageing_seconds: Annotated[
        float,
        typer.Option(
            help="With priorities: who waits this long counts as one level more urgent.", rich_help_panel=SCHEDULING
        ),
    ] = 10.0
    engine_seed: Annotated[
        int,
        typer.Option(
            help="Gives each request without --seed a seed of its own, by its place in the order: a run can be "
            "repeated, and equal prompts get different answers.",
            rich_help_panel=SCHEDULING,
        ),
    ] = 0

    def config(self) -> EngineConfig:
        """Raises `ConfigurationError` for what makes no sense."""
        from looseleaf.engine.config import EngineConfig

        return EngineConfig.parse(self.settings())

    def settings(self) -> dict[str, Any]:
        """Keywords of `EngineConfig`, not checked but for --lora."""
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        del settings["model"], settings["threads"]
        settings["lora"] = parse_lora(self.lora or ())
        settings["seed"] = settings.pop("engine_seed")
        return settings

    def use_threads(self) -> None:
        """Raises `ConfigurationError` for more than can run at once."""
        from looseleaf.kernels.threads import use_threads

        use_threads(self.threads)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Every parameter of `SamplingParams`."""

    max_tokens: Annotated[
        # Any: Typer takes no parser for a union.
        Any,
        typer.Option(
            parser=count_or_none,
            metavar="N|none",
            help="Most tokens of an answer; none: up to the longest sequence.",
            rich_help_panel=SAMPLING,
        ),
    ] = DEFAULT_MAX_TOKENS
    min_tokens: Annotated[
        int, typer.Option(help="Tokens that come before an answer may end.", rich_help_panel=SAMPLING)
    ] = 0
    temperature: Annotated[
        float, typer.Option("--temperature", "-t", help="0: always the most likely token.", rich_help_panel=SAMPLING)
    ] = 1.0
    top_k: Annotated[int, typer.Option(help="Only the k most likely tokens; 0: all.", rich_help_panel=SAMPLING)] = 0
    top_p: Annotated[
        float,
        typer.Option(help="Only the most likely tokens that reach this probability.", rich_help_panel=SAMPLING),
    ] = 1.0
    min_p: Annotated[
        float,
        typer.Option(
            help="Only tokens at least this fraction as likely as the most likely one.", rich_help_panel=SAMPLING
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        typer.Option(help="Above 1: avoid tokens of the prompt and the answer.", rich_help_panel=SAMPLING),
    ] = 1.0
    presence_penalty: Annotated[
        float, typer.Option(help="Above 0: avoid tokens that the answer has.", rich_help_panel=SAMPLING)
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        typer.Option(help="Above 0: avoid tokens by how often the answer has them.", rich_help_panel=SAMPLING),
    ] = 0.0
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=BIAS", help="Added to the logit of a token id; may be repeated.", rich_help_panel=SAMPLING
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Text that ends an answer; may be repeated.", rich_help_panel=SAMPLING),
    ] = None
    stop_token_ids: Annotated[
        list[int] | None,
        typer.Option(
            "--stop-token-id",
            metavar="ID",
            help="Token id that ends an answer; may be repeated.",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    include_stop_str_in_output: Annotated[
        bool, typer.Option("--include-stop", help="Keep the stop text in the answer.", rich_help_panel=SAMPLING)
    ] = False
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos", help="Go on after the model's end-of-sequence token.", rich_help_panel=SAMPLING),
    ] = False
    n: Annotated[int, typer.Option("--n", "-n", help="Answers per prompt.", rich_help_panel=SAMPLING)] = 1
    best_of: Annotated[
        int | None,
        typer.Option(help="Generate this many answers and show the n most likely.", rich_help_panel=SAMPLING),
    ] = None
    beam_width: Annotated[
        int | None,
        typer.Option(help="Beam search with this many beams; shows the n best answers.", rich_help_panel=SAMPLING),
    ] = None
    length_penalty: Annotated[
        float,
        typer.Option(
            help="Beams are compared by log-probability / length ** penalty: above 0 favours long answers.",
            rich_help_panel=SAMPLING,
        ),
    ] = 1.0
    early_stopping: Annotated[
        # Any: as above.
        Any,
        typer.Option(
            parser=parse_early_stopping,
            metavar="false|true|never",
            help="Stop the beams at beam-width answers (true), when no better one is likely (false), or possible "
            "(never).",
            rich_help_panel=SAMPLING,
        ),
    ] = False
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of every request: the same prompt gets the same answer, whatever else runs beside it.",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    logprobs: Annotated[
        int | None,
        typer.Option(
            help="With --json: log-probability of each token, and of this many most likely ones.",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    prompt_logprobs: Annotated[
        int | None, typer.Option(help="The same for the tokens of the prompt.", rich_help_panel=SAMPLING)
    ] = None
    skip_special_tokens: Annotated[
        bool,
        typer.Option(
            "--skip-special/--keep-special",
            help="Whether tokens such as <|im_end|> are left out of the text.",
            rich_help_panel=SAMPLING,
        ),
    ] = True
    json_schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="An answer is JSON that this JSON Schema describes.", rich_help_panel=SAMPLING
        ),
    ] = None
    regex: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="An answer matches this as a whole.", rich_help_panel=SAMPLING),
    ] = None
    choice: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="An answer is one of these; to be repeated.", rich_help_panel=SAMPLING),
    ] = None

    def params(self) -> SamplingParams:
        """Raises `InvalidParameter` or `InvalidGrammar` for what makes no sense."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        schema, regex, choice = (values.pop(name) for name in ("json_schema", "regex", "choice"))
        asked = {"json_schema": schema and read_schema(schema), "regex": regex, "choice": choice or None}
        values["structured"] = {kind: value for kind, value in asked.items() if value is not None} or None
        values["logit_bias"] = parse_logit_bias(self.logit_bias or ())
        values |= {name: tuple(values[name] or ()) for name in ("stop", "stop_token_ids")}
        if self.max_tokens == DEFAULT_MAX_TOKENS:
            values["max_tokens"] = DEFAULT_MAX_TOKENS  # gives way to what fits, as a plain 256 would not
        return SamplingParams(**values)


@dataclass(frozen=True, slots=True)
class OutputOptions:
    json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs to read.", rich_help_panel=OUTPUT)] = (
        False
    )
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Only the result and errors: no notes on stderr.", rich_help_panel=OUTPUT),
    ] = False
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where in the code an error comes from.", rich_help_panel=OUTPUT)
    ] = False
