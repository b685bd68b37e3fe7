"""The options by which a command is given a trace."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from looseleaf.errors import InvalidRequest

if TYPE_CHECKING:
    from looseleaf.replay.sources import TraceSource
    from looseleaf.replay.trace import BadLines, Tokenize, Trace

TRACE = "Trace"


TraceText = Annotated[
    str,
    typer.Argument(
        metavar="FILE|DESCRIPTION",
        help="A trace file, its format told by its content, or a trace to generate: "
        "n=450,arrivals=poisson:10,prompt=uniform:800-1200,output=uniform:4000-6000.",
    ),
]


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """How a trace is read."""

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
            help="Other times for the requests, or the beginnings of sessions: all, regular:RATE, poisson:RATE, "
            "gamma:RATE:CV, onoff:RATE:ON:OFF.",
            rich_help_panel=TRACE,
        ),
    ] = None

    def open(self, trace: str) -> Trace:
        """Raises `InvalidTrace`, `InvalidSpec` and `InvalidRequest`."""
        from looseleaf.replay.trace_source import open_trace

        return open_trace(
            trace,
            format=self.format,
            columns=self.column_map,
            tokenizer=None if self.tokenizer is None else load_tokenizer(self.tokenizer),
            bad_lines=self.checked_bad_lines,
            arrivals=self.arrivals,
        )

    def source(self, trace: str) -> TraceSource:
        """The trace in a form that other processes can open. Texts are counted once, and their lengths kept.

        Raises what `open` raises for options, and for files of texts.
        """
        from looseleaf.replay.sources import TraceSource, digest_of, digest_of_file

        path = Path(trace)
        if self.tokenizer is not None and path.is_file():
            files = [digest_of_file(each) for each in (path, Path(self.tokenizer)) if each.is_file()]
            counted = self._counted(trace, f"{digest_of([files, asdict(self)])}.parquet")
            return TraceSource(str(counted), title=path.name)
        columns = tuple((self.column_map or {}).items())
        return TraceSource(trace, self.format, columns, self.checked_bad_lines, self.arrivals)

    def _counted(self, trace: str, name: str) -> Path:
        """The trace as a table in the cache; it appears whole or not at all."""
        from looseleaf.replay.readers.parquet import write_parquet
        from looseleaf.replay.store import default_folder

        counted = default_folder() / name
        if counted.exists():
            return counted
        found = self.open(trace)
        try:
            counted.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=counted.parent) as folder:
                write_parquet(found, Path(folder) / name)
                (Path(folder) / name).rename(counted)
        except OSError as error:
            raise InvalidRequest(
                f"The lengths of {trace} cannot be kept in {counted.parent}: {error.strerror or error}.",
                hint="Set LOOSELEAF_CACHE to another folder.",
            ) from error
        return counted

    @property
    def column_map(self) -> dict[str, str] | None:
        from looseleaf.replay.trace_source import parse_columns

        return None if self.columns is None else parse_columns(self.columns)

    @property
    def checked_bad_lines(self) -> BadLines:
        if self.bad_lines not in {"fatal", "skip"}:
            raise InvalidRequest(f"--bad-lines is {self.bad_lines!r}.", hint="Choose fatal or skip.")
        return "skip" if self.bad_lines == "skip" else "fatal"


def load_tokenizer(name: str) -> Tokenize:
    """What turns texts into token ids: of a tokenizer.json, or of a model.

    Raises `InvalidRequest`, and `ModelError` where a model has none.
    """
    path = Path(name)
    if path.suffix == ".json":
        return _of_file(path)
    from looseleaf.models.store import resolve_model
    from looseleaf.models.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_model(resolve_model(name).path)
    return lambda texts: [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def _of_file(path: Path) -> Tokenize:
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise InvalidRequest(
            f"{path} is no tokenizer: {error}.", hint="Name a tokenizer.json, or a model's folder with one."
        ) from error
    backend.no_truncation()
    backend.no_padding()
    return lambda texts: [each.ids for each in backend.encode_batch_fast(texts, add_special_tokens=False)]
