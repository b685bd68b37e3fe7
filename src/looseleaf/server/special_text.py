"""Keeps what users write from becoming control tokens.

A chat template prints control tokens and the users' texts into one string, and encoding it would take a
`<|im_end|>` that a user typed for the template's own. So such texts get a mark after their first character before the
template sees them, and the prompt is cut at the marks before it is encoded: no piece holds a control token that was
not the template's. The mark is drawn anew for each request, so no message can contain it. A prompt without marks is
encoded whole, exactly as the model's own tokenizer would.
"""

from __future__ import annotations

import re
import secrets
from itertools import pairwise
from typing import Any

from looseleaf.errors import InvalidRequest
from looseleaf.models.tokenizer import Tokenizer


class SpecialTexts:
    """The texts of a tokenizer's control tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        spellings, special = tokenizer.token_spellings()
        self._tokenizer = tokenizer
        texts = {spellings[token].decode("utf-8", "replace") for token in special if token in spellings}
        texts.discard("")
        self._single = {text for text in texts if len(text) == 1}
        self._firsts = {text[0] for text in texts}
        choices = "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True))
        # A look-ahead finds those that overlap as well.
        self._pattern = re.compile(f"(?=({choices}))") if texts else None

    def mark(self) -> str:
        """A new mark: letters and digits, so that templates, filters and JSON let it pass as it is."""
        return secrets.token_hex(16)

    def guarded(self, value: Any, mark: str) -> Any:
        """`value` (plain JSON data) with `mark` in every control token's text within it, keys included."""
        if isinstance(value, str):
            return self._guarded_text(value, mark)
        if isinstance(value, dict):
            return {self._guarded_text(str(key), mark): self.guarded(item, mark) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.guarded(item, mark) for item in value]
        return value

    def encode(self, text: str, mark: str) -> list[int]:
        """Token ids of a rendered prompt. (A vocabulary that puts a space before every text puts one after a mark.)"""
        if mark not in text:
            return self._tokenizer.encode(text, add_special_tokens=False)
        pieces = (self._tokenizer.encode(piece, add_special_tokens=False) for piece in text.split(mark) if piece)
        return [token for piece in pieces for token in piece]

    def _guarded_text(self, text: str, mark: str) -> str:
        if self._pattern is None or not any(first in text for first in self._firsts):
            return text
        starts = [match.start() for match in self._pattern.finditer(text)]
        if not starts:
            return text
        if any(text[start] in self._single for start in starts):
            raise InvalidRequest("A message contains a control token of one character, which cannot be text.")
        cuts = [0, *(start + 1 for start in starts), len(text)]
        return mark.join(text[a:b] for a, b in pairwise(cuts))
