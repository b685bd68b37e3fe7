"""The public face: what may be asked, in which shapes, and what is refused before anything happens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from looseleaf import LLM, SamplingParams
from looseleaf.errors import ConfigurationError, InvalidRequest, LooseleafError, RequestTooLarge
from looseleaf.kernels import native
from tiny_model import CHAT_TEMPLATE, generate_alone, tiny_model, tiny_tokenizer, write_tiny_folder

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, dtype="float32", kv_cache_memory="64KB", max_model_len=64)


def test_text_ids_and_chats_one_or_many(llm: LLM) -> None:
    tokenizer = tiny_tokenizer()
    chat = [{"role": "user", "content": "hi"}]
    ids = tokenizer.encode("Héllo")
    chat_ids = tokenizer.encode("user: hi\nassistant:")
    assert CHAT_TEMPLATE.endswith("assistant:")
    for prompts, expected in (
        ("Héllo", [ids]),
        (ids, [ids]),
        (np.array(ids), [ids]),
        (chat, [chat_ids]),
        (["Héllo", ids, chat], [ids, ids, chat_ids]),
    ):
        outputs = llm.generate(prompts, GREEDY)  # type: ignore[arg-type]  # NumPy arrays are taken but not announced
        assert [output.prompt_token_ids for output in outputs] == expected
        wanted = [generate_alone(tiny_model(), prompt, 6) for prompt in expected]
        assert [output.outputs[0].token_ids for output in outputs] == wanted
        assert all(output.outputs[0].text == tokenizer.decode(output.outputs[0].token_ids) for output in outputs)
    assert llm.chat(chat, GREEDY).prompt == "user: hi\nassistant:"


def test_parameters_per_prompt(llm: LLM) -> None:
    outputs = llm.generate(["a", "b"], [GREEDY, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [6, 2]
    with pytest.raises(InvalidRequest, match="2 prompts but 1 sampling"):
        llm.generate(["a", "b"], [GREEDY])


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("", "prompt is empty"),
        ([], "no prompt"),
        ([""], "prompt is empty"),
        ([[]], "no tokens"),
        (["fine", [1, 2, 257]], "outside the vocabulary of 257"),
        ([3, -1], "Token 1 of the prompt is -1"),
        ([[1, 2.5]], "2.5, a float"),
        ([[True]], "True, a bool"),
        (["fine", None], "type NoneType"),
        (7, "type int"),
        (b"bytes", "type bytes"),
        ([bytearray(b"ab")], "type bytearray"),
        ([{"role": "user"}], "content"),
        ("\ud800", "not valid Unicode"),
        ("x" * 70, "needs 76 tokens .* is 64"),
    ],
)
def test_a_bad_prompt_is_refused_and_nothing_runs(llm: LLM, prompts: Any, message: str) -> None:
    with pytest.raises(LooseleafError, match=message):
        llm.generate(prompts, GREEDY)
    assert not llm.engine.has_unfinished()
    assert llm.generate("a", GREEDY)[0].finished


def test_the_default_number_of_tokens_gives_way_to_what_fits(llm: LLM) -> None:
    output = llm.generate([1] * 60, {"temperature": 0, "ignore_eos": True})[0].outputs[0]
    assert (len(output.token_ids), output.finish_reason) == (4, "length")
    with pytest.raises(RequestTooLarge):
        llm.generate([1] * 60, {"max_tokens": 256})
    with pytest.raises(RequestTooLarge, match="needs 65 tokens"):
        llm.generate([1] * 64)


def test_parameters_may_be_a_mapping_and_nothing_else(llm: LLM) -> None:
    assert len(llm.generate("a", {"max_tokens": 2, "ignore_eos": True})[0].outputs[0].token_ids) == 2
    for wrong in (7, "greedy", ["greedy"]):
        with pytest.raises(InvalidRequest, match="not understood"):
            llm.generate("a", wrong)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(InvalidRequest, match="temperatur"):
        llm.generate("a", {"temperatur": 0})


def test_a_stream_ends_when_its_request_is_aborted_or_dropped_elsewhere(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborted, failing, beside = (llm.stream([x, 6], GREEDY) for x in (5, 7, 9))
    llm.engine.abort(next(aborted).request_id)
    assert list(aborted) == []
    next(failing)
    next(beside)
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.model, "forward", lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            list(failing)
    assert [delta.finish_reason for delta in beside][-1] == "abort"
    assert llm.engine.memory.num_free_blocks == llm.engine.memory.num_blocks


def test_the_longest_request_that_fits_is_told_and_fits(llm: LLM) -> None:
    prompt = [1] * 40
    with pytest.raises(RequestTooLarge) as caught:
        llm.generate(prompt, SamplingParams(max_tokens=50))
    assert (caught.value.needed, caught.value.limit) == (90, 64)
    fitting = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    assert len(llm.generate(prompt, fitting)[0].outputs[0].token_ids) == 24
    open_ended = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    assert len(llm.generate(prompt, open_ended)[0].outputs[0].token_ids) == 24


def test_a_bad_request_does_not_disturb_those_that_run(llm: LLM) -> None:
    stream = llm.stream([5, 6], GREEDY)
    pieces = [next(stream)]
    with pytest.raises(LooseleafError):
        llm.generate([999], GREEDY)
    pieces += stream
    assert [token for piece in pieces for token in piece.token_ids] == generate_alone(tiny_model(), [5, 6], 6)


def test_interleaved_streams_and_a_closed_one(llm: LLM) -> None:
    first, second, third = (llm.stream([x, 6], GREEDY) for x in (5, 7, 9))
    a, b, c = next(first), next(second), next(third)
    third.close()  # type: ignore[attr-defined]  # an iterator to the caller, a generator in fact
    assert c.request_id not in {sequence.request.request_id for sequence in llm.engine.scheduler.running}
    firsts, seconds = [a], [b]
    for _ in range(5):
        firsts.append(next(first))
        seconds.append(next(second))
    for prompt, deltas in (([5, 6], firsts), ([7, 6], seconds)):
        assert [t for delta in deltas for t in delta.token_ids] == generate_alone(tiny_model(), prompt, 6)
        assert deltas[-1].finish_reason == "length"
    assert list(first) == list(second) == []
    assert llm.engine.memory.num_free_blocks == llm.engine.memory.num_blocks


def test_an_interrupted_generate_leaves_nothing_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = llm.engine.model.forward
    calls = 0

    def interrupted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return forward(*args)

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.model, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["a", "b", "c"], GREEDY)
    assert not llm.engine.has_unfinished()
    llm.engine.memory.audit()
    assert llm.engine.memory.num_free_blocks == llm.engine.memory.num_blocks
    assert llm.generate([5, 6], GREEDY)[0].outputs[0].token_ids == generate_alone(tiny_model(), [5, 6], 6)


def test_best_of_cannot_be_streamed(llm: LLM) -> None:
    with pytest.raises(InvalidRequest, match="best_of=3"):
        llm.stream("a", SamplingParams(best_of=3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_cache_memory": 100}, "too small for one block"),
        ({"kv_cache_memory": 0}, "holds nothing"),
        ({"kv_cache_memory": "lots"}, "no memory size"),
        ({"kv_cache_memory": "0%"}, "no share"),
        ({"kv_cache_memory": "900 TiB"}, "are free"),
        ({"kv_cache_memory": "4KiB", "max_model_len": 400}, "needs 25 blocks of 16"),
        ({"max_model_len": 513}, "positions up to 512"),
        ({"max_model_len": 1}, "at least 2"),
        ({"block_size": 0}, "at least 1"),
        ({"block_size": "16"}, "block_size is '16' but must be an integer"),
        ({"max_num_seqs": 2.5}, "must be an integer"),
        ({"seed": None}, "seed is None"),
        ({"kv_cache_memory": True}, "no memory size"),
        ({"kv_cache_memory": "5ib"}, "no memory size"),
        ({"kv_cache_memory": float("nan")}, "no memory size"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": -5}, "max_num_batched_tokens"),
        ({"watermark": 1.5}, "watermark"),
        ({"dtype": "int3"}, "dtype 'int3'"),
        ({"allocator": "slab"}, "no allocator 'slab'"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(folder: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LLM(folder, **({"dtype": "float32", "kv_cache_memory": "64KB"} | settings))


def test_a_missing_extension_is_said_when_an_engine_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_find_library", lambda: None)
    native.is_available.cache_clear()
    try:
        with pytest.warns(native.NativeExtensionMissing, match="reference kernels"):
            LLM(folder, dtype="float32", kv_cache_memory="64KB")
    finally:
        native.is_available.cache_clear()


def test_an_unknown_setting_is_named(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="kv_cache_memori"):
        LLM(folder, kv_cache_memori="1GiB")
