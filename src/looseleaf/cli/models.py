"""`looseleaf models`: the names that stand for models, and what of them is here."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from looseleaf.cli.command import command
from looseleaf.cli.consoles import note, stdout, write
from looseleaf.cli.options import OutputOptions


def register(app: typer.Typer) -> None:
    command(app, "models")(models)


def models(
    output: OutputOptions,
    fetch: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Download a model now: an alias, or organisation/model on the hub."),
    ] = None,
) -> None:
    """List the models that have an alias, or download one.

    Any command's [bold]--model[/] also takes a folder in Hugging Face's layout, a .gguf file, or a name on the hub.
    """
    from looseleaf.models.store import list_models, resolve_model

    if fetch is not None:
        found = resolve_model(fetch)
        write(json.dumps(asdict(found), default=str) + "\n" if output.json else f"{found.path}\n")
        return
    known = list_models()
    if output.json:
        write(json.dumps([asdict(model) for model in known], default=str, indent=2) + "\n")
        return
    table = Table("alias", "model", "licence", "size", "here", box=None, header_style="bold", pad_edge=False)
    for model in known:
        size = f"{model.download_bytes / 1e6:,.0f} MB"
        table.add_row(model.alias, model.description, model.licence, size, "yes" if model.cached else "no")
    stdout().print(table)
    for model in known:
        if model.cached:
            stdout().print(f"{model.alias}: {model.path}", soft_wrap=True, markup=False)
    note("Download one with: looseleaf models --fetch ALIAS")
