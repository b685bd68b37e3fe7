"""What an output can be required to be, and how that is written down as a grammar. No tokenizer, no model.

`SamplingParams.structured` is a mapping with one key:

- `json_schema`: a JSON Schema, decoded or as JSON text. Keywords that cannot be enforced are refused, not passed over.
- `json_object`: True; any JSON object.
- `regex`: a regular expression (Rust's syntax: no look-around, no references back) for the whole output.
- `choice`: strings of which the output is one.
- `grammar`: a context-free grammar in llguidance's dialect of Lark.

JSON comes out as Python's `json.dumps` spaces it: free white space would let a weak model write it without end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from looseleaf.engine.sampling_errors import InvalidGrammar, InvalidParameter

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

    from looseleaf.engine.sampling_params import SamplingParams

KINDS = ("json_schema", "json_object", "regex", "choice", "grammar")
MAX_SIZE = 65_536
"""Characters of a grammar, or of a schema as JSON."""
MAX_DEPTH = 64
"""Objects and arrays of a schema within one another."""
_SPACING: JsonCompileOptions = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_META = re.compile(r"[\\.+*?()|\[\]{}^$#&~/-]")


def check_structured(params: SamplingParams) -> None:
    """Check and normalise `params.structured`: its form and size. Whether the grammar makes sense, compiling it says.

    Raises `InvalidGrammar`, or `InvalidParameter` for another form and for what has no meaning together with it.
    """
    if params.structured is None:
        return
    kind, value = _only_entry(params.structured)
    object.__setattr__(params, "structured", {kind: _CHECKS[kind](value)})
    for name, off in (("ignore_eos", False), ("min_tokens", 0)):
        if getattr(params, name) != off:
            raise InvalidParameter(
                name, getattr(params, name), f"{off} with structured", hint="The grammar says when the output may end."
            )


def grammar_text(structured: Mapping[str, Any]) -> str:
    """A checked `SamplingParams.structured` as llguidance reads it; equal ones give equal texts."""
    from llguidance import LLMatcher

    kind, value = _only_entry(structured)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(value)
    if kind == "choice":
        return LLMatcher.grammar_from_regex("|".join(_META.sub(r"\\\g<0>", choice) for choice in value))
    if kind == "grammar":
        return LLMatcher.grammar_from_lark(value)
    schema = {"type": "object"} if kind == "json_object" else value
    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=_SPACING, overrides={"lenient": False})
    except ValueError as error:
        raise InvalidGrammar(f"The JSON schema cannot be read: {error}.") from error


def _only_entry(structured: object) -> tuple[str, Any]:
    if isinstance(structured, Mapping) and len(structured) == 1:
        kind, value = next(iter(structured.items()))
        if kind in KINDS:
            return kind, value
    raise InvalidParameter("structured", structured, f"a mapping with one of {', '.join(KINDS)}")


def _check_schema(value: object) -> dict[str, Any] | bool:
    schema: Any = value
    if isinstance(value, str):
        _check_size(value)
        try:
            schema = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InvalidGrammar(f"The JSON schema is no JSON: {error}.") from error
    if not isinstance(schema, Mapping | bool):
        raise InvalidGrammar(f"A JSON schema is an object or a boolean, not {type(schema).__name__}.")
    _check_depth(schema)
    try:
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidGrammar(f"The JSON schema is no JSON: {error}.") from error
    _check_size(text)
    decoded: dict[str, Any] | bool = json.loads(text)
    return decoded


def _check_object(value: object) -> bool:
    if value is not True:
        raise InvalidGrammar("json_object must be True.", hint="Leave structured out where nothing is required.")
    return True


def _check_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidGrammar("A regular expression or grammar must be a string that is not empty.")
    _check_size(value)
    return value


def _check_choice(value: object) -> list[str]:
    if isinstance(value, list | tuple) and value and all(isinstance(choice, str) and choice for choice in value):
        _check_size("".join(value))
        return list(dict.fromkeys(value))
    raise InvalidGrammar("choice must be a list of strings, none of them empty.")


_CHECKS = {
    "json_schema": _check_schema,
    "json_object": _check_object,
    "regex": _check_text,
    "choice": _check_choice,
    "grammar": _check_text,
}


def _check_size(text: str) -> None:
    if len(text) > MAX_SIZE:
        raise InvalidGrammar(
            f"The grammar has {len(text)} characters, and at most {MAX_SIZE} are compiled.",
            hint="Ask for less at once.",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidGrammar(f"The grammar is not valid Unicode text: {error}.") from error


def _check_depth(schema: object) -> None:
    level = [schema]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for value in level
            if isinstance(value, Mapping | list | tuple)
            for child in (value.values() if isinstance(value, Mapping) else value)
        ]
        if not level:
            return
    raise InvalidGrammar(f"The JSON schema is nested more than {MAX_DEPTH} levels deep.")
