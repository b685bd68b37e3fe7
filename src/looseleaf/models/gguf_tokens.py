"""The tokenizer metadata of a GGUF file, each entry checked to be of the type that its writers give it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from looseleaf.models.errors import CorruptModelFile

_END_NAMES = ("eos", "eot", "eom")
"""The end of a turn and of a message end a generation as the end of the sequence does."""


class TokenMetadata:
    """Look-ups of `tokenizer.ggml.*` keys, named without that prefix. Raises `CorruptModelFile` for a wrong type."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def text(self, key: str) -> str | None:
        return _text(f"tokenizer.ggml.{key}", self._get(key))

    def chat_template(self) -> str | None:
        return _text("tokenizer.chat_template", self._metadata.get("tokenizer.chat_template"))

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, int):  # converters have written 0 and 1 too
            raise _wrong_type(f"tokenizer.ggml.{key}", value, "true or false")
        return bool(value)

    def token_id(self, name: str) -> int | None:
        """The id of a token with a role: bos, eos, unknown, …; that it lies in the vocabulary is not said."""
        value = self._get(f"{name}_token_id")
        if value is not None and type(value) is not int:
            raise _wrong_type(f"tokenizer.ggml.{name}_token_id", value, "a token id")
        return value

    def end_token_ids(self) -> tuple[int, ...]:
        """The ids that end a generation, in the order of their names."""
        return tuple(dict.fromkeys(index for name in _END_NAMES if (index := self.token_id(name)) is not None))

    def texts(self, key: str) -> list[str]:
        return self._list(key, str, "texts")

    def integers(self, key: str) -> list[int]:
        return self._list(key, int, "whole numbers")

    def numbers(self, key: str) -> list[float]:
        return self._list(key, int | float, "numbers")

    def _list(self, key: str, kind: Any, wanted: str) -> list[Any]:
        value = self._get(key)
        if value is None:
            raise CorruptModelFile(
                f"The GGUF file has no tokenizer.ggml.{key}.", hint="It was written without its tokenizer, or damaged."
            )
        # By the types that occur, not item by item: vocabularies are long, and this is asked for several times.
        if not isinstance(value, list) or not all(issubclass(each, kind) for each in set(map(type, value))):
            raise _wrong_type(f"tokenizer.ggml.{key}", value, f"a list of {wanted}")
        return value

    def _get(self, key: str) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}")


def _text(key: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _wrong_type(key, value, "text")
    return value


def _wrong_type(key: str, value: Any, wanted: str) -> CorruptModelFile:
    if isinstance(value, list):
        found = "a list of " + (", ".join(sorted({type(item).__name__ for item in value})) or "nothing")
    else:
        found = f"the {type(value).__name__} {value!r:.40}"
    return CorruptModelFile(f"The GGUF file's {key} is {found}; {wanted} is expected.")
