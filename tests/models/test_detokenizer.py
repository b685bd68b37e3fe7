"""Streamed text adds up to what decoding everything at once gives, and no emitted text is ever taken back."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders
from tokenizers.models import BPE

from looseleaf.models.detokenizer import IncrementalDetokenizer, byte_alphabet, detokenizer_factory
from looseleaf.models.errors import UnsupportedModel
from looseleaf.models.tokenizer import Tokenizer

VOCAB_SIZE = 49_152  # of SmolLM2


def byte_level_backend() -> tokenizers.Tokenizer:
    """Every byte, some pieces that begin or end inside a character, and added tokens of both kinds."""
    alphabet = {byte: character for character, byte in byte_alphabet().items()}
    pieces = [bytes([byte]) for byte in range(256)]
    pieces += ["né".encode()[:2], "né".encode()[1:], "🦙".encode()[:3], "🦙".encode()[2:], b"\xed\xa0", b" the"]
    vocabulary = {"".join(alphabet[byte] for byte in piece): index for index, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(BPE(vocab=vocabulary, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<｜fin ▁｜>", special=True)])
    backend.add_tokens([AddedToken("two  spaces"), AddedToken("é")])
    return backend


def sentencepiece_backend(strip: bool) -> tokenizers.Tokenizer:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁▁", "a", "é", "b▁"]
    backend = tokenizers.Tokenizer(BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], byte_fallback=True))
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


BACKENDS = {
    "byte-level": byte_level_backend(),
    "sentencepiece": sentencepiece_backend(strip=True),
    "sentencepiece-unstripped": sentencepiece_backend(strip=False),
}
FACTORIES = {name: detokenizer_factory(backend) for name, backend in BACKENDS.items()}
# Runs make long broken sequences and long held ones; ids past the vocabulary occur in models with padded embeddings.
RUNS = st.lists(st.tuples(st.one_of(st.integers(0, 275), st.integers(256, 267)), st.integers(1, 6)), max_size=25)
IDS = st.one_of(
    RUNS.map(lambda runs: [token for token, times in runs for _ in range(times)]),
    st.text().map(lambda text: list(text.encode())),
    st.text().map(lambda text: [3 + byte for byte in text.encode()]),
)
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=8)


def in_pushes(ids: list[int], cuts: list[int]) -> list[list[int]]:
    pushes: list[list[int]] = []
    start = 0
    while start < len(ids):
        size = cuts[len(pushes) % len(cuts)]
        pushes.append(ids[start : start + size])
        start += size
    return pushes


def streamed(detokenizer: IncrementalDetokenizer, ids: list[int], cuts: list[int]) -> str:
    return "".join([*(detokenizer.push(push) for push in in_pushes(ids, cuts)), detokenizer.finish()])


@pytest.mark.parametrize("name", BACKENDS)
@given(ids=IDS, cuts=CUTS, skip=st.booleans())
@settings(max_examples=200)
def test_streamed_text_is_the_decoded_text(name: str, ids: list[int], cuts: list[int], skip: bool) -> None:
    assert streamed(FACTORIES[name](skip), ids, cuts) == BACKENDS[name].decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", BACKENDS)
@given(ids=IDS, cuts=CUTS, more=IDS)
@settings(max_examples=150)
def test_emitted_text_stands_whatever_follows(name: str, ids: list[int], cuts: list[int], more: list[int]) -> None:
    detokenizer = FACTORIES[name](False)
    emitted = "".join(detokenizer.push(push) for push in in_pushes(ids, cuts))
    assert BACKENDS[name].decode(ids + more, skip_special_tokens=False).startswith(emitted)


@given(ids=IDS)
@settings(max_examples=200)
def test_a_byte_level_stream_holds_back_only_an_unfinished_character(ids: list[int]) -> None:
    detokenizer = FACTORIES["byte-level"](False)
    emitted = detokenizer.push(ids)
    decoded = BACKENDS["byte-level"].decode(ids, skip_special_tokens=False)
    held = decoded.removeprefix(emitted)
    assert held in ("", "\ufffd", "\ufffd\ufffd")  # two: half a surrogate, which can become nothing else


@pytest.mark.parametrize("name", BACKENDS)
@given(first=IDS, second=IDS)
@settings(max_examples=100)
def test_a_finished_detokenizer_is_as_new(name: str, first: list[int], second: list[int]) -> None:
    detokenizer = FACTORIES[name](True)
    streamed(detokenizer, first, [3])
    assert streamed(detokenizer, second, [2]) == BACKENDS[name].decode(second)


def test_a_character_split_over_tokens_appears_with_its_last_byte() -> None:
    detokenizer = FACTORIES["byte-level"](True)
    assert [detokenizer.push([byte]) for byte in "a🦙b".encode()] == ["a", "", "", "", "🦙", "b"]


def test_byte_tokens_are_text_only_when_their_run_has_ended() -> None:
    detokenizer = FACTORIES["sentencepiece"](True)
    llama = [3 + byte for byte in "🦙".encode()]
    assert [detokenizer.push([token]) for token in llama] == ["", "", "", ""]
    assert detokenizer.push([262]) == "🦙a"
    assert detokenizer.push([3 + 0xFF]) == ""
    assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        decoders.Metaspace(),
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip("x", 1, 0)]
        ),
        decoders.Sequence([decoders.Replace("_", " "), decoders.ByteFallback(), decoders.Fuse()]),
    ],
)
def test_a_decoder_that_cannot_be_streamed_is_refused(decoder: decoders.Decoder | None) -> None:
    backend = tokenizers.Tokenizer(BPE(vocab={"a": 0}, merges=[]))
    if decoder is not None:
        backend.decoder = decoder
    with pytest.raises(UnsupportedModel, match="cannot be streamed"):
        detokenizer_factory(backend)


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> Tokenizer:
    return Tokenizer.from_gguf(smollm2_gguf)


def test_random_ids_of_a_real_vocabulary(smollm2: Tokenizer) -> None:
    # Tokens that are no text of their own are what random ids seldom bring together.
    broken = [index for index in range(VOCAB_SIZE) if "\ufffd" in smollm2.decode([index], False)]
    any_id = st.one_of(st.integers(0, VOCAB_SIZE + 50), st.sampled_from(broken), st.integers(0, 20))

    @given(ids=st.lists(any_id, max_size=80), cuts=CUTS, skip=st.booleans())
    @settings(max_examples=200)
    def check(ids: list[int], cuts: list[int], skip: bool) -> None:
        assert streamed(smollm2.detokenizer(skip), ids, cuts) == smollm2.decode(ids, skip)

    check()


def test_every_token_of_a_real_vocabulary(smollm2: Tokenizer) -> None:
    ids = list(range(VOCAB_SIZE))
    for skip in (True, False):
        assert streamed(smollm2.detokenizer(skip), ids, [7]) == smollm2.decode(ids, skip)
