"""Models by name: the numbers of their published configurations that a plan needs."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from looseleaf.plan.errors import UnknownModelName
from looseleaf.plan.model_config import load_model, read_model
from looseleaf.plan.shape import ModelShape


@cache
def known_models() -> Mapping[str, Mapping[str, Any]]:
    """Configurations by name, lower case."""
    table: dict[str, dict[str, Any]] = json.loads(
        files("looseleaf.plan").joinpath("known_models.json").read_text(encoding="utf-8")
    )
    return {name.lower(): {**config, "_name": name} for name, config in table.items()}


def find_model(text: str) -> ModelShape:
    """The model that `text` names: a config.json, a folder with one, or a known name (with or without organisation).

    Raises `UnknownModelName`, and what `read_model` raises.
    """
    if Path(text).exists():
        return load_model(text)
    known = known_models()
    key = text.strip().lower()
    short = {name.rpartition("/")[2]: name for name in known}
    name = key if key in known else short.get(key.rpartition("/")[2] if "/" not in key else "", "")
    if name:
        config = known[name]
        return read_model(config, name=str(config["_name"]))
    near = difflib.get_close_matches(key, [*known, *short], n=3, cutoff=0.5)
    raise UnknownModelName(
        f"There is no file {text[:100]!r}, and no model of that name is known to the planner.",
        hint=(f"Did you mean {' or '.join(near)}? " if near else "")
        + "Give the path of the model's config.json, or one of: "
        + ", ".join(sorted(short))
        + ".",
    )
