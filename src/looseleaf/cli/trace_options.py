"""The options by which a command is given a trace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from looseleaf.errors import InvalidRequest

if TYPE_CHECKING:
    from looseleaf.replay.trace import Tokenize, Trace

TRACE = "Trace"


@dataclass(frozen=True, slots=True)
class TraceOptions:
    trace: Annotated[
        str,
        typer.Argument(
            metavar="FILE|DESCRIPTION",
            help="A trace file, its format told by its content, or a trace to generate: "
            "n=450,arrivals=poisson:10,prompt=uniform:800-1200,output=uniform:4000-6000.",
        ),
    ]
    format: Annotated[
        str | None,
        typer.Option(help="The file's format, instead of looking at its content.", rich_help_panel=TRACE),
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="MEANING=COLUMN,…",
            help="For CSV and Parquet, which column is what: arrival (seconds or dates) or arrival_ms, prompt, output, "
            "tenant, session, priority, samples.",
            rich_help_panel=TRACE,
        ),
    ] = None
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|MODEL",
            help="For files of texts: a tokenizer.json, or a model whose tokenizer counts.",
            rich_help_panel=TRACE,
        ),
    ] = None
    bad_lines: Annotated[
        str,
        typer.Option(
            metavar="fatal|skip",
            help="Whether lines that cannot be used end the reading, or are counted and left out.",
            rich_help_panel=TRACE,
        ),
    ] = "fatal"
    arrivals: Annotated[
        str | None,
        typer.Option(
            metavar="PROCESS",
            help="Other times for the requests: all, regular:RATE, poisson:RATE, gamma:RATE:CV, onoff:RATE:ON:OFF.",
            rich_help_panel=TRACE,
        ),
    ] = None

    def open(self) -> Trace:
        """Raises `InvalidTrace`, `InvalidSpec` and `InvalidRequest`."""
        from looseleaf.replay.trace_source import open_trace, parse_columns

        if self.bad_lines not in {"fatal", "skip"}:
            raise InvalidRequest(f"--bad-lines is {self.bad_lines!r}.", hint="Choose fatal or skip.")
        return open_trace(
            self.trace,
            format=self.format,
            columns=None if self.columns is None else parse_columns(self.columns),
            tokenizer=None if self.tokenizer is None else load_tokenizer(self.tokenizer),
            bad_lines="skip" if self.bad_lines == "skip" else "fatal",
            arrivals=self.arrivals,
        )


def load_tokenizer(name: str) -> Tokenize:
    """What turns texts into token ids: of a tokenizer.json, or of a model with one. Raises `InvalidRequest`."""
    from pathlib import Path

    import tokenizers

    from looseleaf.models.store import resolve_model

    path = Path(name)
    if path.suffix != ".json":
        path = resolve_model(name).path
        path = path / "tokenizer.json" if path.is_dir() else path
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise InvalidRequest(
            f"{path} is no tokenizer: {error}.", hint="Name a tokenizer.json, or a model's folder with one."
        ) from error
    backend.no_truncation()
    backend.no_padding()
    return lambda texts: [each.ids for each in backend.encode_batch_fast(texts, add_special_tokens=False)]
