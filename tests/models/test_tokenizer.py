"""Agreement with transformers and with plain re-implementations, from GGUF metadata and from folders."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]  # it ships no types
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from looseleaf.errors import InvalidRequest, ModelError
from looseleaf.models.errors import CorruptModelFile, ModelNotFound, UnsupportedModel
from looseleaf.models.gguf_file import GGUFFile
from looseleaf.models.gguf_tokenizer import build_gguf_tokenizer
from looseleaf.models.tokenizer import Tokenizer

AWKWARD = [
    "",
    " ",
    "  leading, trailing  ",
    "runs      of   spaces\t\ttabs\n\n\nlines\r\n\r\rreturns \n ",
    "digits 0 12 123 1234567890 ٣٤٥ ½ Ⅷ 3.14159",
    "emoji 🙂 family 👨‍👩‍👧‍👦 flags 🇫🇷🇺🇦 skin 👍🏽 keycap 1️⃣ llama 🦙",
    "CJK 你好，世界。日本語テスト 한국어 𠮷野家",
    "Arabic السلام عليكم Hebrew שלום mixed abc שלום 123",
    "combining e\u0301 a\u0308\u0304 n\u0303 Z͑ͫ̓ͪ̂ͫ̽͏̴̙a̴l̷g̸o decomposed ﬁ Å",
    "NUL \x00 control \x01\x1b\x7f\x85 separators \u2028\u2029 joiners \u200b\u200d\u2060 BOM \ufeff",
    "contractions I'm he'LL don't O'Neill ’s 's'S'T",
    "code: def f(x):\n    return {'a': [1, 2], \"b\": x**2}  # ok\n\t\tpass",
    "punctuation !!!???...---___***$$$%%%&&&()[]{}<>/\\|~`^",
    "<|im_start|>user\nspecial text inside<|im_end|><|endoftext|> <|im_star t|> <|im_start|><|im_start|>",
    "a" * 3000,
    "supercalifragilistic" * 60,
    "🦙" * 200,
    "\ufffd replacement \U0010ffff private \ue000",
    "nbsp\u00a0thin\u2009ideographic\u3000space",
]
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|im_", "|>"]
TEXT = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(SPECIALS), st.sampled_from(AWKWARD[1:14]))).map("".join)


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_gguf)


@pytest.fixture(scope="module")
def smollm2_folder(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tokenizer as a folder, built from the model's published recipe (digits, then GPT-2's split)."""
    metadata = GGUFFile(smollm2_gguf).metadata
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    backend = tokenizers.Tokenizer(BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, types, strict=True) if kind == 3]
    )
    folder = tmp_path_factory.mktemp("smollm2")
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    return folder


@pytest.fixture(scope="module")
def theirs(smollm2_folder: Path) -> PreTrainedTokenizerFast:
    tokenizer = AutoTokenizer.from_pretrained(str(smollm2_folder))
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_text_agrees_with_transformers(
    text: str, smollm2: Tokenizer, smollm2_folder: Path, theirs: PreTrainedTokenizerFast
) -> None:
    ours_from_folder = Tokenizer.from_folder(smollm2_folder)
    expected = theirs.encode(text)
    assert smollm2.encode(text) == ours_from_folder.encode(text) == expected
    for skip in (True, False):
        assert smollm2.decode(expected, skip) == theirs.decode(expected, skip_special_tokens=skip)
    assert smollm2.decode(expected, skip_special_tokens=False) == text


def test_any_text_agrees_with_transformers(smollm2: Tokenizer, theirs: PreTrainedTokenizerFast) -> None:
    @given(text=TEXT)
    @settings(max_examples=200)
    def check(text: str) -> None:
        ids = smollm2.encode(text)
        assert ids == theirs.encode(text)
        # Not `== text`: this vocabulary has no token for some bytes (0xF1 among them) and drops them.
        assert smollm2.decode(ids, False) == theirs.decode(ids, skip_special_tokens=False)

    check()


def test_gguf_and_folder_describe_the_same_tokenizer(smollm2: Tokenizer, smollm2_folder: Path) -> None:
    folder = Tokenizer.from_folder(smollm2_folder)
    for tokenizer in (smollm2, folder):
        assert tokenizer.eos_token_ids == (2,)
        assert [tokenizer.decode([index]) for index in range(17)] == [""] * 17
        assert tokenizer.decode([17]) != ""
        assert tokenizer.decode([49151]) != ""
        assert tokenizer.decode([49152]) == ""
        assert tokenizer.special_tokens == {
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
        }
    assert smollm2.chat_templates["default"].source == folder.chat_templates["default"].source


def test_chat_ids_agree_with_transformers(smollm2: Tokenizer, theirs: PreTrainedTokenizerFast) -> None:
    messages = [{"role": "user", "content": "Hello <|im_end|> 🦙"}, {"role": "assistant", "content": "Hi!\n"}]
    for prompt in (True, False):
        expected = theirs.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
        text = smollm2.apply_chat_template(messages, add_generation_prompt=prompt)
        assert smollm2.encode(text, add_special_tokens=False) == expected


def test_lone_surrogates_are_refused(smollm2: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="Unicode"):
        smollm2.encode("half \ud83e")


def test_negative_ids_are_refused_and_unknown_ones_decode_to_nothing(smollm2: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="token ids"):
        smollm2.decode([-1])
    assert smollm2.decode([10**6]) == ""


# --- Byte-level pre-tokenizers, against a plain split-and-merge ------------------------------------------------------

CORPUS = [text for text in AWKWARD if len(text) < 200] * 3 + [
    "The quick brown fox jumps over 13 lazy dogs, doesn't it? HTTPServer camelCase ParseJSON naïve Ünïcode"
]
# The patterns as the models' authors published them, for a second regular-expression engine.
PUBLISHED = {
    "gpt-2": [r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""],
    "smollm": [r"\p{N}", r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""],
    "llama-bpe": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ],
    "qwen2": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ],
    "tekken": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
}
BOS_BY_DEFAULT = {"llama-bpe", "tekken"}
WHOLE_WORDS = {"llama-bpe", "tekken"}


def train(kind: str) -> dict[str, Any]:
    """GGUF metadata of a small vocabulary, with one word that no merge leads to and both kinds of added token."""
    backend = tokenizers.Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet))
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    types = [1] * len(tokens) + [1, 3, 3, 4]
    tokens += ["ĠÃ¼nmerged", "<|bos|>", "<|eos|>", "<think>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": len(tokens) - 3,
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
    }


def plain_byte_level(metadata: dict[str, Any], text: str) -> list[int]:
    kind = metadata["tokenizer.ggml.pre"]
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    ids = {token: index for index, token in enumerate(tokens)}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    found = [ids["<|bos|>"]] if kind in BOS_BY_DEFAULT else []
    for part in regex.split(r"(<\|bos\|>|<\|eos\|>|<think>)", text):
        if part in ("<|bos|>", "<|eos|>", "<think>"):
            found.append(ids[part])
            continue
        words = [part]
        for pattern in PUBLISHED[kind]:
            words = [piece for word in words for piece in isolated(pattern, word)]
        for word in words:
            spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(word)[0][0]
            found += [ids[symbol] for symbol in merged(spelled, ids, ranks, whole=kind in WHOLE_WORDS)]
    return found


def isolated(pattern: str, text: str) -> Iterator[str]:
    end = 0
    for match in regex.finditer(pattern, text):
        yield from (piece for piece in (text[end : match.start()], match[0]) if piece)
        end = match.end()
    if end < len(text):
        yield text[end:]


def merged(word: str, ids: dict[str, int], ranks: dict[tuple[str, ...], int], *, whole: bool) -> list[str]:
    if whole and word in ids:
        return [word]
    symbols = list(word)
    while True:
        pairs = [(ranks[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in ranks]
        if not pairs:
            return symbols
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


METADATA = {kind: train(kind) for kind in PUBLISHED}
BUILT = {kind: build_gguf_tokenizer(metadata) for kind, metadata in METADATA.items()}
# The two engines may know different versions of Unicode: what the older one calls unassigned is left out.
ASSIGNED = st.characters(exclude_categories=("Cs", "Cn"))
ADDED = st.sampled_from(["<|bos|>", "<|eos|>", "<think>", " ünmerged", "'LL", "123456", "\r\n\r\n ", "XMLHttp"])


@pytest.mark.parametrize("kind", PUBLISHED)
@given(text=st.lists(st.one_of(st.text(ASSIGNED, max_size=10), ADDED)).map("".join))
@settings(max_examples=100, deadline=None)
def test_byte_level_kinds_split_as_published(kind: str, text: str) -> None:
    if kind == "qwen2":  # its tokenizer composes characters first; a composed text stays what it is
        text = unicodedata.normalize("NFC", text)
    assert BUILT[kind].encode(text).ids == plain_byte_level(METADATA[kind], text)


@pytest.mark.parametrize("kind", PUBLISHED)
def test_awkward_text_splits_as_published(kind: str) -> None:
    for text in CORPUS:
        given_text = unicodedata.normalize("NFC", text) if kind == "qwen2" else text
        assert BUILT[kind].encode(text).ids == plain_byte_level(METADATA[kind], given_text)


# --- SentencePiece, against its own rule ------------------------------------------------------------------------------


def train_sentencepiece(add_space_prefix: bool) -> dict[str, Any]:
    """GGUF metadata as of a Llama 2 file: pieces with scores, byte tokens, and no merges."""
    backend = tokenizers.Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    prose = ["the quick brown fox jumps over the lazy dog", "there then these those thesis", "naïve café 日本 日本語"]
    backend.train_from_iterator(prose * 3, trainers.BpeTrainer(vocab_size=150))
    learned = sorted(backend.get_vocab(), key=backend.get_vocab().__getitem__)
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *learned, "<turn>"]
    types = [2, 3, 3, *[6] * 256, *[1] * len(learned), 4]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(learned))] + [0.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }


def plain_sentencepiece(metadata: dict[str, Any], text: str) -> list[int]:
    """Kudo and Richardson (2018): join the neighbours that make the best-scored piece; bytes for what is no piece."""
    pieces = metadata["tokenizer.ggml.tokens"]
    normal = {
        piece: (score, index)
        for index, (piece, kind, score) in enumerate(
            zip(pieces, metadata["tokenizer.ggml.token_type"], metadata["tokenizer.ggml.scores"], strict=True)
        )
        if kind == 1
    }
    ids = [metadata["tokenizer.ggml.bos_token_id"]]
    for part in regex.split(r"(<turn>|<s>|</s>|<unk>)", text):
        if part in pieces and part.startswith("<"):
            ids.append(pieces.index(part))
            continue
        symbols = list(part.replace(" ", "▁"))
        if symbols and metadata["tokenizer.ggml.add_space_prefix"]:
            symbols.insert(0, "▁")
        while pairs := [
            (-normal[left + right][0], i) for i, (left, right) in enumerate(pairwise(symbols)) if left + right in normal
        ]:
            _, i = min(pairs)
            symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]
        for symbol in symbols:
            ids += [normal[symbol][1]] if symbol in normal else [3 + byte for byte in symbol.encode()]
    return ids


SENTENCEPIECE = {prefix: train_sentencepiece(prefix) for prefix in (True, False)}
SENTENCEPIECE_BUILT = {prefix: build_gguf_tokenizer(metadata) for prefix, metadata in SENTENCEPIECE.items()}
PROSE = st.sampled_from(
    ["the", " quick", "these ", " ", "café", "日本", "<turn>", "</s>", "thesis\n", "ov", "er", "🦙"]
)


@pytest.mark.parametrize("prefix", [True, False])
@given(text=st.lists(st.one_of(PROSE, st.text(max_size=4))).map("".join))
@settings(max_examples=200, deadline=None)
def test_sentencepiece_joins_the_best_scored_pieces(prefix: bool, text: str) -> None:
    backend = SENTENCEPIECE_BUILT[prefix]
    ids = backend.encode(text).ids
    assert ids == plain_sentencepiece(SENTENCEPIECE[prefix], text)
    if "<" not in text and "▁" not in text:  # special tokens each get a space of their own before what follows
        assert backend.decode(ids) == text


# --- Metadata and folders that are not what they should be ------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "error", "says"),
    [
        ("model", "bert", UnsupportedModel, "'bert'"),
        ("model", None, CorruptModelFile, "tokenizer.ggml.model"),
        ("pre", "gpt-9", UnsupportedModel, "'gpt-9'"),
        ("pre", None, UnsupportedModel, "no pre-tokenizer"),
        ("tokens", None, CorruptModelFile, "tokenizer.ggml.tokens"),
        ("tokens", [], CorruptModelFile, "0 tokens"),
        ("tokens", ["a", "a"], CorruptModelFile, "2 tokens, 1 of them"),
        ("tokens", ["a", "b"], CorruptModelFile, "types for 2 tokens"),
        ("token_type", [1], CorruptModelFile, "1 token types"),
        ("merges", None, CorruptModelFile, "tokenizer.ggml.merges"),
        ("merges", ["ab"], CorruptModelFile, "malformed merge: 'ab'"),
        ("merges", ["a b c"], CorruptModelFile, "malformed merge: 'a b c'"),
        ("merges", ["zq xj"], CorruptModelFile, "inconsistent"),
        ("bos_token_id", 10**6, CorruptModelFile, "bos token id 1000000"),
        ("bos_token_id", None, CorruptModelFile, "bos_token_id"),
        ("model", ["gpt2"], CorruptModelFile, "tokenizer.ggml.model is a list of str; text is expected"),
        ("pre", 7, CorruptModelFile, "tokenizer.ggml.pre is the int 7; text"),
        ("tokens", 7, CorruptModelFile, "tokenizer.ggml.tokens is the int 7; a list of texts"),
        ("tokens", "abc", CorruptModelFile, "tokenizer.ggml.tokens is the str 'abc'"),
        ("tokens", [1, 2], CorruptModelFile, "tokenizer.ggml.tokens is a list of int"),
        ("token_type", 1, CorruptModelFile, "tokenizer.ggml.token_type is the int 1"),
        ("token_type", ["a"], CorruptModelFile, "tokenizer.ggml.token_type is a list of str"),
        ("merges", [5], CorruptModelFile, "tokenizer.ggml.merges is a list of int"),
        ("bos_token_id", [1, 2], CorruptModelFile, "tokenizer.ggml.bos_token_id is a list of int; a token id"),
        ("bos_token_id", True, CorruptModelFile, "tokenizer.ggml.bos_token_id is the bool True"),
        ("add_bos_token", "no", CorruptModelFile, "tokenizer.ggml.add_bos_token is the str 'no'"),
    ],
)
def test_malformed_metadata_is_refused(key: str, value: Any, error: type[ModelError], says: str) -> None:
    metadata = METADATA["llama-bpe"] | {f"tokenizer.ggml.{key}": value}
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(error, match=regex.escape(says)):
        build_gguf_tokenizer(metadata)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("scores", 1.0, "tokenizer.ggml.scores is the float 1.0; a list of numbers"),
        ("scores", ["1"], "tokenizer.ggml.scores is a list of str"),
        ("unknown_token_id", [0], "tokenizer.ggml.unknown_token_id is a list of int"),
        ("unknown_token_id", -1, "unknown token id -1"),
        ("add_space_prefix", [], "tokenizer.ggml.add_space_prefix is a list of nothing"),
    ],
)
def test_malformed_sentencepiece_metadata_is_refused(key: str, value: Any, says: str) -> None:
    with pytest.raises(CorruptModelFile, match=regex.escape(says)):
        build_gguf_tokenizer(SENTENCEPIECE[True] | {f"tokenizer.ggml.{key}": value})


def test_bos_and_eos_follow_the_file() -> None:
    ids = {name: METADATA["gpt-2"][f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos")}
    plain = BUILT["gpt-2"].encode("fox").ids
    for bos in (True, False):
        for eos in (True, False):
            flags = {"tokenizer.ggml.add_bos_token": bos, "tokenizer.ggml.add_eos_token": eos}
            backend = build_gguf_tokenizer(METADATA["gpt-2"] | flags)
            assert backend.encode("fox").ids == [ids["bos"]] * bos + plain + [ids["eos"]] * eos
            assert backend.encode("fox", add_special_tokens=False).ids == plain


def write_folder(folder: Path, **files: Any) -> Path:
    BUILT["qwen2"].save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_tokens_that_only_the_configuration_knows_are_added_as_transformers_adds_them(tmp_path: Path) -> None:
    added = {
        "423": {"content": "<|extra|>", "special": True, "normalized": False},
        "424": {"content": "[soft]", "special": False, "lstrip": True, "normalized": False},
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "eos_token": {"__type": "AddedToken", "content": "<|eos|>", "special": True},
        "pad_token": "<|pad|>",
    }
    folder = write_folder(tmp_path, tokenizer_config=config, special_tokens_map={"bos_token": "<|bos|>"})
    ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(str(folder))
    for text in ("a<|extra|>b  [soft]c<|pad|><|eos|>", "fox"):
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.special_tokens == {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"}
    assert ours.eos_token_ids == (theirs.eos_token_id,)


@pytest.mark.parametrize(
    ("generation", "model", "expected"),
    [({"eos_token_id": [5, 7]}, {"eos_token_id": 9}, (5, 7)), ({}, {"eos_token_id": 9}, (9,)), ({}, {}, (422,))],
)
def test_eos_ids_come_from_the_most_specific_file(
    tmp_path: Path, generation: dict[str, Any], model: dict[str, Any], expected: tuple[int, ...]
) -> None:
    tokenizer_config = {"eos_token": "<|eos|>"}
    folder = write_folder(tmp_path, generation_config=generation, config=model, tokenizer_config=tokenizer_config)
    assert METADATA["qwen2"]["tokenizer.ggml.eos_token_id"] == 422
    assert Tokenizer.from_folder(folder).eos_token_ids == expected


@pytest.mark.parametrize("name", ["generation_config", "config"])
def test_end_tokens_outside_the_configured_vocabulary_are_refused(tmp_path: Path, name: str) -> None:
    files: dict[str, Any] = {"config": {"vocab_size": 424}}
    files[name] = files.get(name, {}) | {"eos_token_id": [5, 424]}
    with pytest.raises(CorruptModelFile, match=rf"{name}\.json: eos_token_id is \[5, 424\], outside .* 424"):
        Tokenizer.from_folder(write_folder(tmp_path, **files))
    files["config"]["vocab_size"] = 425
    assert Tokenizer.from_folder(write_folder(tmp_path, **files)).eos_token_ids == (5, 424)


def test_the_newest_kind_of_template_file_wins(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "old"}, {"name": "tool_use", "template": "tools"}]
    folder = write_folder(tmp_path, tokenizer_config={"chat_template": named})
    message = [{"role": "user", "content": "x"}]

    def rendered(tools: list[dict[str, Any]] | None = None) -> str:
        return Tokenizer.from_folder(folder).apply_chat_template(message, tools=tools)

    assert (rendered(), rendered([{"name": "f"}])) == ("old", "tools")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "newer"}))
    assert rendered() == "newer"
    (folder / "chat_template.jinja").write_text("newest")
    assert rendered() == "newest"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("newest tools")
    assert rendered([{"name": "f"}]) == "newest tools"


def test_a_file_trained_to_truncate_and_pad_does_neither(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(BUILT["gpt-2"].to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "tokenizer.json"))
    text = "The quick brown fox"
    assert Tokenizer.from_folder(tmp_path).encode(text) == BUILT["gpt-2"].encode(text).ids


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", "{", "not a tokenizer"),
        ("tokenizer.json", '{"model": 3}', "not a tokenizer"),
        ("tokenizer_config.json", "{", "JSON"),
        ("tokenizer_config.json", "[]", "holds a list"),
        ("tokenizer_config.json", '{"chat_template": [3]}', "chat_template"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": 3}}', "added_tokens_decoder"),
        ("generation_config.json", '{"eos_token_id": "two"}', "eos_token_id"),
        ("chat_template.jinja", b"\xff", "UTF-8"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, name: str, content: str | bytes, says: str) -> None:
    folder = write_folder(tmp_path)
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(CorruptModelFile, match=says) as caught:
        Tokenizer.from_folder(folder)
    assert name in str(caught.value)


def test_a_template_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (write_folder(tmp_path) / "additional_chat_templates" / "tool_use.jinja").mkdir(parents=True)
    with pytest.raises(CorruptModelFile, match=r"tool_use\.jinja cannot be read: Is a directory"):
        Tokenizer.from_folder(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no folder"):
        Tokenizer.from_folder(tmp_path / "nowhere")
    with pytest.raises(ModelNotFound, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(ModelNotFound, match=r"Convert its tokenizer\.model"):
        Tokenizer.from_folder(tmp_path)
