"""Reads the tokenizer files of a model folder in Hugging Face's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers

from looseleaf.models.errors import CorruptModelFile, ModelNotFound
from looseleaf.models.json_file import read_json_object

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TokenizerFiles:
    """The files of one folder, read as transformers reads them: the newer file wins over the older.

    Raises (each method): `ModelNotFound`, `CorruptModelFile`.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ModelNotFound(f"There is no folder {folder}.")
        self._folder = folder
        self._config = self._read_json("tokenizer_config.json")
        self._special_map = self._read_json("special_tokens_map.json")

    def backend(self) -> tokenizers.Tokenizer:
        """The tokenizer itself, with the tokens that only its configuration knows added to it."""
        path = self._folder / "tokenizer.json"
        if not path.is_file():
            hint = (
                "Convert its tokenizer.model to tokenizer.json." if (self._folder / "tokenizer.model").exists() else ""
            )
            raise ModelNotFound(f"{self._folder} has no tokenizer.json.", hint=hint)
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises bare Exception, for unreadable files too
            raise CorruptModelFile(f"{path} is not a tokenizer: {error}") from error
        self._add_configured_tokens(backend)
        return backend

    def special_tokens(self) -> dict[str, str]:
        """Text of the special token of each role."""
        found = {role: _token_text(self._config.get(role) or self._special_map.get(role)) for role in _ROLES}
        return {role: text for role, text in found.items() if text is not None}

    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a generation: of the generation configuration, else of the model's; or none named.

        They are held against the vocabulary that config.json claims, if it does; the weights may still differ.
        """
        vocab_size = self._read_json("config.json").get("vocab_size")
        for name in ("generation_config.json", "config.json"):
            ids = self._read_json(name).get("eos_token_id")
            if ids is None:
                continue
            listed = ids if isinstance(ids, list) else [ids]
            if not all(type(index) is int and index >= 0 for index in listed):
                raise CorruptModelFile(f"{self._folder / name}: eos_token_id is {ids!r}, not token ids.")
            if isinstance(vocab_size, int) and any(index >= vocab_size for index in listed):
                raise CorruptModelFile(
                    f"{self._folder / name}: eos_token_id is {ids!r}, outside the vocabulary of {vocab_size}.",
                    hint="The files are of different models.",
                )
            return tuple(listed)
        return ()

    def chat_templates(self) -> dict[str, str]:
        """Templates by name; the one that is not named in the files is `"default"`."""
        templates = self._configured_templates()
        older = self._read_json("chat_template.json").get("chat_template")
        if isinstance(older, str):
            templates["default"] = older
        newer = self._folder / "chat_template.jinja"
        if newer.is_file():
            templates["default"] = self._read_text(newer)
        for path in sorted((self._folder / "additional_chat_templates").glob("*.jinja")):
            templates[path.stem] = self._read_text(path)
        return templates

    def _configured_templates(self) -> dict[str, str]:
        configured = self._config.get("chat_template")
        if configured is None:
            return {}
        if isinstance(configured, str):
            return {"default": configured}
        try:
            return {str(entry["name"]): str(entry["template"]) for entry in configured}
        except (TypeError, KeyError) as error:
            raise CorruptModelFile(
                f"{self._folder / 'tokenizer_config.json'}: chat_template is neither text nor named templates."
            ) from error

    def _add_configured_tokens(self, backend: tokenizers.Tokenizer) -> None:
        known = {token.content for token in backend.get_added_tokens_decoder().values()}
        missing = [token for token in self._configured_tokens() if token.content not in known]
        known |= {token.content for token in missing}
        missing += [
            tokenizers.AddedToken(text, special=True, normalized=False)
            for text in dict.fromkeys(self.special_tokens().values())
            if text not in known
        ]
        if missing:
            backend.add_tokens(missing)

    def _configured_tokens(self) -> list[tokenizers.AddedToken]:
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        entries = self._config.get("added_tokens_decoder", {})
        try:
            return [
                tokenizers.AddedToken(entry["content"], **{flag: entry[flag] for flag in flags if flag in entry})
                for _, entry in sorted(entries.items(), key=lambda item: int(item[0]))
            ]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptModelFile(
                f"{self._folder / 'tokenizer_config.json'}: added_tokens_decoder is malformed: {error}"
            ) from error

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        return read_json_object(path) if path.is_file() else {}

    def _read_text(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CorruptModelFile(f"{path} is not UTF-8 text: {error}") from error
        except OSError as error:
            raise CorruptModelFile(f"{path} cannot be read: {error.strerror}.") from error


def _token_text(token: Any) -> str | None:
    """A token is spelled as text, or as an object with its matching flags beside it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
