"""Reads a model's published config.json into its shape. What is not known is refused, not guessed."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from looseleaf.plan.checkpoint_formats import checkpoint_dtype, checkpoint_formats, checkpoint_kv_dtype
from looseleaf.plan.errors import InvalidModelShape, UnknownArchitecture, UnknownModelName
from looseleaf.plan.families import ARCHITECTURES, READERS
from looseleaf.plan.fields import ConfigFields
from looseleaf.plan.shape import ModelShape

_TEXT_PARTS = ("text_config", "language_config", "llm_config")
_LARGEST_FILE = 64 * 2**20


def load_model(path: str | Path) -> ModelShape:
    """The model that a config.json (or a folder with one) describes.

    Raises `UnknownModelName` if there is no such file, and what `read_model` raises.
    """
    file = Path(path)
    try:
        if file.is_dir():
            file = file / "config.json"
        if file.stat().st_size > _LARGEST_FILE:
            raise InvalidModelShape(f"{file} is larger than 64 MiB.", hint="Give the model's config.json.")
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownModelName(f"{file} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidModelShape(f"{file} is not JSON: {error}.", hint="Give the model's config.json.") from error
    name = file.parent.name if file.name == "config.json" and file.parent.name else file.stem
    return read_model(values, name=name.replace("--", "/"))


def read_model(values: Any, *, name: str = "the model") -> ModelShape:
    """The shape that the contents of a config.json describe; the text model may be under text_config.

    Raises:
        UnknownArchitecture: its architecture or model_type is not known; the message says what would be needed.
        InvalidModelShape: a number is missing or contradicts another.
    """
    if not isinstance(values, Mapping):
        raise InvalidModelShape(f"The configuration of {name} is not an object.", hint="Give the model's config.json.")
    text, outer = _text_part(values)
    architecture = _architecture(values, name)
    model_type = text.get("model_type") or values.get("model_type")
    if not isinstance(model_type, str) or model_type not in READERS:
        raise _unknown("model_type", model_type, READERS, name)
    if architecture is not None and architecture not in ARCHITECTURES:
        raise _unknown("architecture", architecture, ARCHITECTURES, name)
    # What concerns the whole model stands beside the text model, or within it.
    merged = {
        key: values[key]
        for key in ("tie_word_embeddings", "quantization_config", "dtype", "torch_dtype")
        if key in values
    }
    fields = ConfigFields(name, {**merged, **text})
    shape = READERS[model_type](fields)
    dtype, notes = checkpoint_dtype(fields)
    formats, more = checkpoint_formats(fields, shape)
    return replace(
        shape,
        architecture=architecture or model_type,
        dtype=dtype,
        quantization=formats,
        kv_dtype=checkpoint_kv_dtype(fields),
        notes=(*shape.notes, *notes, *more, *_left_out(values, outer, fields)),
    )


def _text_part(values: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The text model's configuration, and whether it is a part of a larger one."""
    for part in _TEXT_PARTS:
        text = values.get(part)
        if isinstance(text, Mapping):
            return text, True
    return values, False


def _architecture(values: Mapping[str, Any], name: str) -> str | None:
    listed = values.get("architectures")
    if listed is None:
        return None
    if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], str):
        raise InvalidModelShape(
            f"The configuration of {name} has architectures = {str(listed)[:80]}.",
            hint="It must be a list of one name.",
        )
    return listed[0]


def _unknown(what: str, given: object, known: Mapping[str, Any] | frozenset[str], name: str) -> UnknownArchitecture:
    if not isinstance(given, str):
        return UnknownArchitecture(
            f"The configuration of {name} names no {what}.", hint="Give the model's whole config.json."
        )
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.75)
    return UnknownArchitecture(
        f"{name} has {what} {given[:80]!r}, which is not known here, so nothing is said about its memory"
        + (f" ({near[0]} is, but need not be alike)." if near else "."),
        hint="It would need: which layers keep keys and values, how many heads of which size in each, their windows "
        "or states, and the matrices of each layer.",
    )


def _left_out(values: Mapping[str, Any], outer: bool, fields: ConfigFields) -> list[str]:
    notes = []
    parts = [key.removesuffix("_config") for key in ("vision_config", "audio_config") if values.get(key)]
    if outer and (parts or "vision_config" not in values):
        what = " and ".join(parts) or "other"
        notes.append(f"only the text model is counted: the weights of the {what} part come on top (--extra-weights)")
    drafts = fields.values.get("num_nextn_predict_layers") or fields.values.get("mtp_num_hidden_layers")
    if drafts:
        notes.append(f"{drafts} layer{'s' if drafts != 1 else ''} for multi-token prediction: not loaded, not counted")
    return notes
