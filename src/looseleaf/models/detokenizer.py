"""Incremental detokenising: token ids in, final text out, never half a character.

A byte-level vocabulary maps each token to bytes, so its detokeniser is a table lookup and an incremental UTF-8
decoder. A SentencePiece vocabulary spells rare characters with byte tokens, and its decoder judges a run of them as
a whole: valid UTF-8 becomes text, anything else one U+FFFD for each byte. Such a run is final only when it ends.
Both cost O(1) per token and add up exactly to what decoding all ids at once gives.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import tokenizers

from looseleaf.models.errors import UnsupportedModel

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_SENTENCEPIECE_STEPS: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_STRIP_FIRST_SPACE: dict[str, Any] = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


class IncrementalDetokenizer(Protocol):
    """Decodes one sequence while it grows."""

    def push(self, ids: Iterable[int]) -> str:
        """Take the next token ids and return the text they make final (often "" inside a character).

        Ids that the vocabulary lacks decode to nothing, as they do when everything is decoded at once.
        """
        ...

    def finish(self) -> str:
        """Return what was held back; the detokeniser is then as new."""
        ...


class DetokenizerFactory(Protocol):
    """Makes detokenisers that share one table of pieces per tokenizer."""

    def __call__(self, skip_special_tokens: bool) -> IncrementalDetokenizer: ...


class ByteLevelDetokenizer:
    """For vocabularies whose tokens are byte strings (GPT-2, Llama 3, Qwen, SmolLM2)."""

    __slots__ = ("_held", "_pieces")

    def __init__(self, pieces: Mapping[int, bytes]) -> None:
        self._pieces = pieces
        self._held = b""

    def push(self, ids: Iterable[int]) -> str:
        pieces = self._pieces
        data = self._held + b"".join([pieces.get(token, b"") for token in ids])
        text, consumed = codecs.utf_8_decode(data, "replace", False)
        self._held = data[consumed:]
        return text

    def finish(self) -> str:
        text, _ = codecs.utf_8_decode(self._held, "replace", True)
        self._held = b""
        return text


class SentencePieceDetokenizer:
    """For vocabularies of text pieces with byte fallback (Llama 2, Mistral)."""

    __slots__ = ("_pieces", "_run", "_strip_next", "_strips")

    def __init__(self, pieces: Mapping[int, str | int], strips_first_space: bool) -> None:
        self._pieces = pieces
        self._run = bytearray()
        self._strips = strips_first_space
        self._strip_next = strips_first_space

    def push(self, ids: Iterable[int]) -> str:
        final: list[str] = []
        for token in ids:
            piece = self._pieces.get(token)
            if isinstance(piece, int):
                self._run.append(piece)
            elif piece is not None:
                if self._run:
                    final.append(self._end_run())
                final.append(piece)
        return self._strip("".join(final))

    def finish(self) -> str:
        text = self._strip(self._end_run())
        self._strip_next = self._strips
        return text

    def _end_run(self) -> str:
        try:
            text = self._run.decode("utf-8")
        except UnicodeDecodeError:
            text = _REPLACEMENT * len(self._run)
        self._run.clear()
        return text

    def _strip(self, text: str) -> str:
        if self._strip_next and text:
            self._strip_next = False
            return text.removeprefix(" ")
        return text


def detokenizer_factory(backend: tokenizers.Tokenizer) -> DetokenizerFactory:
    """Build the piece tables for `backend` once, at their first use, so that each sequence's detokeniser is a few words
    of memory.

    Raises:
        UnsupportedModel: `backend` has no decoder, or one that is neither byte-level nor SentencePiece-like.
    """
    steps = _decoder_steps(backend)

    if _is_byte_level(steps):
        return _when_used(lambda: _byte_level_factory(*_vocabulary(backend)))
    if steps[:3] == _SENTENCEPIECE_STEPS and steps[3:] in ([], [_STRIP_FIRST_SPACE]):
        return _when_used(lambda: _sentencepiece_factory(*_vocabulary(backend), strips_first_space=len(steps) == 4))
    raise UnsupportedModel(
        f"The tokenizer's decoder ({' + '.join(step['type'] for step in steps) or 'none'}) cannot be streamed exactly.",
        hint="Byte-level decoders and SentencePiece's (Replace + ByteFallback + Fuse, with or without Strip) can.",
    )


def _when_used(build: Callable[[], DetokenizerFactory]) -> DetokenizerFactory:
    built = functools.cache(build)

    def make(skip_special_tokens: bool) -> IncrementalDetokenizer:
        return built()(skip_special_tokens)

    return make


def token_spellings(backend: tokenizers.Tokenizer) -> tuple[dict[int, bytes], set[int]]:
    """The bytes that each token adds to a text, and which tokens are special (theirs are their names)."""
    vocabulary, special = _vocabulary(backend)
    if _is_byte_level(_decoder_steps(backend)):
        spelling = _byte_spelling()
        return {index: _spelled_bytes(token, spelling) for index, token in vocabulary.items()}, special
    pieces = {index: _text_or_byte(token) for index, token in vocabulary.items()}
    return {i: bytes([piece]) if isinstance(piece, int) else piece.encode() for i, piece in pieces.items()}, special


def _vocabulary(backend: tokenizers.Tokenizer) -> tuple[dict[int, str], set[int]]:
    """Every token as it is written down, and which are special."""
    added = backend.get_added_tokens_decoder()
    vocabulary = {index: token for token, index in backend.get_vocab(with_added_tokens=True).items()}
    vocabulary |= {index: token.content for index, token in added.items()}
    return vocabulary, {index for index, token in added.items() if token.special}


def _is_byte_level(steps: list[dict[str, Any]]) -> bool:
    return [step["type"] for step in steps] == ["ByteLevel"]


def _byte_spelling() -> dict[int, str]:
    """For `str.translate`: from the printable character of each byte to the byte as latin-1."""
    spelling = {ord(character): chr(byte) for character, byte in byte_alphabet().items()}
    return spelling | {byte: _NO_BYTE for byte in range(256) if byte not in spelling}


def _byte_level_factory(vocabulary: Mapping[int, str], special: set[int]) -> DetokenizerFactory:
    spelling = _byte_spelling()
    every = {index: _spelled_bytes(token, spelling) for index, token in vocabulary.items()}
    visible = {index: piece for index, piece in every.items() if index not in special}

    def make(skip_special_tokens: bool) -> IncrementalDetokenizer:
        return ByteLevelDetokenizer(visible if skip_special_tokens else every)

    return make


def _sentencepiece_factory(
    vocabulary: Mapping[int, str], special: set[int], strips_first_space: bool
) -> DetokenizerFactory:
    every = {index: _text_or_byte(token) for index, token in vocabulary.items()}
    visible = {index: piece for index, piece in every.items() if index not in special}

    def make(skip_special_tokens: bool) -> IncrementalDetokenizer:
        return SentencePieceDetokenizer(visible if skip_special_tokens else every, strips_first_space)

    return make


_NO_BYTE = "\uffff"
"""What a character below 256 that spells no byte becomes, so that it cannot be taken for one."""


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte, inverted: character → byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def _spelled_bytes(token: str, spelling: Mapping[int, str]) -> bytes:
    # A token with any character outside the alphabet (an added token such as "<｜end｜>") stands for its own text.
    try:
        return token.translate(spelling).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8")


def _text_or_byte(token: str) -> str | int:
    match = _BYTE_TOKEN.fullmatch(token)
    return int(match[1], 16) if match else token.replace("\u2581", " ")


def _decoder_steps(backend: tokenizers.Tokenizer) -> list[dict[str, Any]]:
    if backend.decoder is None:
        return []
    # The decoder's pickle state is its JSON; serialising the whole tokenizer would drag the vocabulary along.
    decoder: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]
