"""The report's page: template, style and script, the document, and the plotting library, all in one text."""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from importlib.resources import files
from typing import Any

_FOLDER = files("looseleaf.replay.report")


def render(document: dict[str, Any]) -> str:
    """HTML of about two megabytes, nearly all of it the plotting library (packed; browsers unpack it themselves)."""
    # "</script>" in a name must not end the element that the document stands in.
    data = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "style": _text("page.css"),
        "document": data,
        "plotly": _plotly(),
        "script": _text("page.js"),
    }
    before, *pieces = _text("page.html").split("{{")
    page = [before]
    for piece in pieces:
        name, _, after = piece.partition("}}")
        page += [parts[name], after]
    return "".join(page)


def _text(name: str) -> str:
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    packed = gzip.compress(get_plotlyjs().encode(), compresslevel=9, mtime=0)
    return base64.b64encode(packed).decode()
