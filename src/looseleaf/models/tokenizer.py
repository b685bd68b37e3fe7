"""Text to token ids and back, with the model's special tokens and chat template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from looseleaf.errors import InvalidRequest
from looseleaf.models.chat_template import ChatTemplate, ChatTemplates, Message
from looseleaf.models.detokenizer import IncrementalDetokenizer, detokenizer_factory, token_spellings
from looseleaf.models.errors import CorruptModelFile
from looseleaf.models.gguf_file import GGUFFile
from looseleaf.models.gguf_tokenizer import build_gguf_tokenizer
from looseleaf.models.gguf_tokens import TokenMetadata
from looseleaf.models.model_files import find_model
from looseleaf.models.tokenizer_files import TokenizerFiles

_SHORTENING = 4
"""Compatibility forms: three bytes of a full-width letter become one."""


class Tokenizer:
    """A model's tokenizer. Immutable once built, so threads may share one.

    Attributes:
        special_tokens: by role (`"bos_token"`, `"eos_token"`, …), the text of each special token that has one.
        eos_token_ids: the ids that end a generation, in the model's own order; empty where it names none.
        chat_templates: empty for a model without one.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Sequence[int] = (),
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        # A file may carry the truncation and padding that it was trained with; a server must do neither.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._detokenizer = detokenizer_factory(backend)
        self.special_tokens = dict(special_tokens or {})
        eos = backend.token_to_id(self.special_tokens["eos_token"]) if "eos_token" in self.special_tokens else None
        self.eos_token_ids = tuple(eos_token_ids) or (() if eos is None else (eos,))
        self.chat_templates = ChatTemplates(chat_templates or {}, self.special_tokens)

    @classmethod
    def from_model(cls, path: Path) -> Tokenizer:
        """That of the model at `path`: a folder, a GGUF file, or a folder with one. Raises what both below raise."""
        found = find_model(path)
        return cls.from_folder(found) if found.is_dir() else cls.from_gguf(found)

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Load tokenizer.json and what lies beside it, as transformers does.

        Raises:
            ModelNotFound: no such folder, or no tokenizer.json in it.
            CorruptModelFile: a file that is not the JSON it should be.
            UnsupportedModel: a tokenizer whose tokens cannot be streamed exactly.
        """
        files = TokenizerFiles(folder)
        return cls(
            files.backend(),
            special_tokens=files.special_tokens(),
            eos_token_ids=files.eos_token_ids(),
            chat_templates=files.chat_templates(),
        )

    @classmethod
    def from_gguf(cls, file: Path | GGUFFile) -> Tokenizer:
        """Build from the metadata of a GGUF file (pass the opened file where there is one already).

        Raises:
            ModelNotFound: no such file.
            CorruptModelFile: a damaged file, or metadata of a wrong type or that contradicts itself.
            UnsupportedModel: a kind of tokenizer or pre-tokenizer that is not known.
        """
        metadata = (file if isinstance(file, GGUFFile) else GGUFFile(file)).metadata
        backend = build_gguf_tokenizer(metadata)
        entries = TokenMetadata(metadata)
        tokens = entries.texts("tokens")
        ends = entries.end_token_ids()
        if outside := [index for index in ends if not 0 <= index < len(tokens)]:
            raise CorruptModelFile(f"The GGUF file's end tokens {outside} are outside its {len(tokens)} tokens.")
        roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        ids = {role: entries.token_id(name) for role, name in roles.items()}
        template = entries.chat_template()
        return cls(
            backend,
            # A role outside the vocabulary is one that no token has; only the ends above decide anything.
            special_tokens={role: tokens[i] for role, i in ids.items() if i is not None and 0 <= i < len(tokens)},
            eos_token_ids=ends,
            chat_templates={"default": template} if template else {},
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. The text of a special token becomes that token, as in transformers.

        `add_special_tokens` frames the text as the model was trained (usually a leading BOS, often nothing).

        Raises:
            InvalidRequest: `text` holds half a surrogate pair and so is no Unicode text.
        """
        try:
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest(
                f"The prompt is not valid Unicode text: {error}", hint="Pass text, without lone surrogates."
            ) from error

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`, exactly as the tokens spell it (no clean-up of spaces).

        Bytes that are no UTF-8 become U+FFFD; ids beyond the vocabulary become nothing.

        Raises:
            InvalidRequest: a negative id.
        """
        try:
            return str(self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens))
        except (OverflowError, TypeError) as error:
            raise InvalidRequest(f"Not token ids: {error}", hint="Token ids are integers from 0.") from error

    def detokenizer(self, skip_special_tokens: bool = True) -> IncrementalDetokenizer:
        """A new incremental detokeniser for one sequence; its texts add up to `decode` of all the ids."""
        return self._detokenizer(skip_special_tokens)

    @cached_property
    def longest_token(self) -> int:
        """Most bytes of a text that one token stands for, by and large: what a tokenizer puts into another form first
        may become shorter by that, and of runs of characters that it does not know some make one token."""
        longest = max(map(len, self.token_spellings()[0].values()))
        return longest * (_SHORTENING if self._backend.normalizer is not None else 1)

    def token_spellings(self) -> tuple[dict[int, bytes], set[int]]:
        """The bytes that each token adds to a text, and which tokens are special (theirs are their names)."""
        return token_spellings(self._backend)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt that `messages` make; see `ChatTemplate.render`. Encode it without special tokens.

        Raises:
            NoChatTemplate, InvalidMessages, MessagesRefused, ChatTemplateError.
        """
        template: ChatTemplate = self.chat_templates.choose(with_tools=bool(tools))
        return template.render(messages, tools=tools, add_generation_prompt=add_generation_prompt, **variables)
