"""A `tokenizers` tokenizer built from the metadata of a GGUF file.

A GGUF names its tokenizer's model (`tokenizer.ggml.model`) and, for byte-level BPE, how text is split before
merging (`tokenizer.ggml.pre`, the names registered in llama.cpp's `llama-vocab.cpp`). The splits below are those of
the models' own tokenizer.json files. A name that is not in the table is refused: a wrong split gives wrong tokens
without any other sign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from looseleaf.models.errors import CorruptModelFile, UnsupportedModel
from looseleaf.models.gguf_tokens import TokenMetadata

_WORD_BOUNDARY = "\u2581"  # SentencePiece's visible space

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _PreTokenizer:
    """How one registered kind prepares text: `splits` apply one after the other, each match a piece of its own."""

    splits: tuple[str, ...]
    whole_words: bool = False  # a word that is in the vocabulary is taken as it is, whatever the merges say
    nfc: bool = False
    adds_bos: bool = False  # when the file does not say


_PRE_TOKENIZERS: dict[str, _PreTokenizer] = {
    "gpt-2": _PreTokenizer((_GPT2,)),
    "smollm": _PreTokenizer((r"\p{N}", _GPT2)),
    "llama-bpe": _PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True),
    "qwen2": _PreTokenizer((_QWEN2,), nfc=True),
    "tekken": _PreTokenizer((_TEKKEN,), whole_words=True, adds_bos=True),
}
_PRE_TOKENIZERS["llama3"] = _PRE_TOKENIZERS["llama-v3"] = _PRE_TOKENIZERS["llama-bpe"]
_PRE_TOKENIZERS["deepseek-r1-qwen"] = _PRE_TOKENIZERS["qwen2"]


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def build_gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that `metadata` (GGUF key → value, arrays as lists) describes.

    Raises:
        UnsupportedModel: an unknown kind of tokenizer or of pre-tokenizer: named, with the known ones.
        CorruptModelFile: metadata that is missing, of a wrong type, or contradicts itself.
    """
    entries = TokenMetadata(metadata)
    model = entries.text("model")
    if model is None:
        raise CorruptModelFile("The GGUF file has no tokenizer.ggml.model.", hint="It was written without a tokenizer.")
    if model not in ("gpt2", "llama"):
        raise UnsupportedModel(
            f"The GGUF file's tokenizer is of kind {model!r}, which is not known.",
            hint="Known kinds: gpt2 (byte-level BPE) and llama (SentencePiece BPE).",
        )
    tokens = entries.texts("tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if not tokens or len(vocabulary) != len(tokens):
        raise CorruptModelFile(f"The GGUF file lists {len(tokens)} tokens, {len(vocabulary)} of them different.")
    types = entries.integers("token_type")
    if len(types) != len(tokens):
        raise CorruptModelFile(f"The GGUF file has {len(types)} token types for {len(tokens)} tokens.")
    try:
        if model == "gpt2":
            tokenizer = _build_byte_level(entries, vocabulary)
        else:
            tokenizer = _build_sentencepiece(entries, vocabulary, types)
    except (CorruptModelFile, UnsupportedModel):
        raise
    except Exception as error:  # tokenizers raises bare Exception on merges that do not fit the vocabulary
        raise CorruptModelFile(f"The GGUF file's tokenizer is inconsistent: {error}") from error
    tokenizer.add_special_tokens(
        [
            AddedToken(tokens[i], special=True, normalized=False)
            for i, kind in enumerate(types)
            if kind in (_TokenType.CONTROL, _TokenType.UNKNOWN)
        ]
    )
    tokenizer.add_tokens(
        [AddedToken(tokens[i], normalized=False) for i, kind in enumerate(types) if kind == _TokenType.USER_DEFINED]
    )
    return tokenizer


def _build_byte_level(entries: TokenMetadata, vocabulary: dict[str, int]) -> Tokenizer:
    pre = entries.text("pre")
    if pre is None or pre not in _PRE_TOKENIZERS:
        found = "names no pre-tokenizer" if pre is None else f"splits text as {pre!r}, which is not known"
        raise UnsupportedModel(
            f"The GGUF file's tokenizer {found}.",
            hint=f"Known: {', '.join(sorted(_PRE_TOKENIZERS))}. Convert the model again with a current converter.",
        )
    kind = _PRE_TOKENIZERS[pre]
    merges = _merges(entries.texts("merges"))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=kind.whole_words))
    if kind.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(split), behavior="isolated") for split in kind.splits),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _add_bos_and_eos(tokenizer, entries, adds_bos=kind.adds_bos)
    return tokenizer


def _build_sentencepiece(entries: TokenMetadata, vocabulary: dict[str, int], types: Sequence[int]) -> Tokenizer:
    scores = entries.numbers("scores")
    if len(scores) != len(vocabulary):
        raise CorruptModelFile(f"The GGUF file has {len(scores)} token scores for {len(vocabulary)} tokens.")
    unknown = entries.token_id("unknown")
    tokens = list(vocabulary)
    if unknown is not None and not 0 <= unknown < len(tokens):
        raise CorruptModelFile(f"The GGUF file's unknown token id {unknown} is outside its {len(tokens)} tokens.")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges_by_score(tokens, scores, types),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixes_space = entries.flag("add_space_prefix", True)
    visible_spaces = normalizers.Replace(" ", _WORD_BOUNDARY)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_WORD_BOUNDARY), visible_spaces])
        if prefixes_space
        else visible_spaces
    )
    join: list[decoders.Decoder] = [
        decoders.Replace(_WORD_BOUNDARY, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    tokenizer.decoder = decoders.Sequence([*join, decoders.Strip(" ", 1, 0)] if prefixes_space else join)
    _add_bos_and_eos(tokenizer, entries, adds_bos=True)
    return tokenizer


def _merges_by_score(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """The merge list with which BPE does what SentencePiece's does: join the pair that makes the best-scored piece.

    Several pairs may make one piece: then the longer left half goes first, as in transformers. (SentencePiece takes
    the leftmost pair in the text, which no list of merges can say; they part on runs of one repeated character.)
    """
    mergeable = {token for token, kind in zip(tokens, types, strict=True) if kind == _TokenType.NORMAL}
    ranked = sorted(range(len(tokens)), key=lambda i: -scores[i])
    return [
        (tokens[i][:cut], tokens[i][cut:])
        for i in ranked
        if types[i] == _TokenType.NORMAL
        for cut in range(len(tokens[i]) - 1, 0, -1)
        if tokens[i][:cut] in mergeable and tokens[i][cut:] in mergeable
    ]


def _add_bos_and_eos(tokenizer: Tokenizer, entries: TokenMetadata, *, adds_bos: bool) -> None:
    tokens = entries.texts("tokens")
    before = _marker(entries, "bos", tokens) if entries.flag("add_bos_token", adds_bos) else None
    after = _marker(entries, "eos", tokens) if entries.flag("add_eos_token", False) else None
    if before is None and after is None:
        return
    single = [*([before[0]] if before else []), "$A", *([after[0]] if after else [])]
    pair = [*single, "$B:1"]
    special = [marker for marker in (before, after) if marker]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def _marker(entries: TokenMetadata, name: str, tokens: Sequence[str]) -> tuple[str, int]:
    index = entries.token_id(name)
    if index is None:
        raise CorruptModelFile(f"The GGUF file adds a {name} token but has no tokenizer.ggml.{name}_token_id.")
    if not 0 <= index < len(tokens):
        raise CorruptModelFile(f"The GGUF file's {name} token id {index} is outside its {len(tokens)} tokens.")
    return tokens[index], index


def _merges(lines: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [tuple(line.split(" ")) for line in lines]
    if set(map(len, pairs)) <= {2} and all(map(all, pairs)):
        return pairs  # type: ignore[return-value]  # just looked
    return [_merge(line) for line in lines]  # raises


def _merge(merge: str) -> tuple[str, str]:
    left, separator, right = merge.partition(" ")
    if not (left and separator and right) or " " in right:
        raise CorruptModelFile(f"The GGUF file has a malformed merge: {merge!r}.")
    return left, right
