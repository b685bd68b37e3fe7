"""`looseleaf generate`: the answers are the engine's, in order and readable; what is wrong is said and nothing runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from looseleaf import LLM, SamplingParams
from looseleaf.cli.command import BROKEN_PIPE
from looseleaf.cli.prompt_input import gather_prompts
from looseleaf.memory.factory import ALLOCATORS
from tiny_model import LOADED

Cli = Callable[..., tuple[int, str, str]]

SHORT = ["--max-tokens", "6", "--ignore-eos"]
GREEDY = [*SHORT, "--temperature", "0"]


@pytest.fixture(scope="module")
def llm(tiny_folder: Path) -> LLM:
    return LLM(tiny_folder, dtype="float32", kv_cache_memory="128KB", max_model_len=256)


def tokens(line: dict[str, Any]) -> list[list[int]]:
    return [output["token_ids"] for output in line["outputs"]]


def test_json_lines_hold_what_the_library_returns(cli: Cli, tiny: list[str], llm: LLM, tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "text"}, {"prompt": [5, 6, 7]}, {"messages": messages}]
    file.write_text("\n\n".join(json.dumps(line) for line in lines))
    options = [*SHORT, "--n", "2", "--seed", "3", "--logprobs", "1", "--prompt-logprobs", "0"]
    code, output, _ = cli("generate", *tiny, *options, "--prompt", "hello", "--file", file, "--json")
    assert code == 0
    printed = [json.loads(line) for line in output.splitlines()]
    params = SamplingParams(max_tokens=6, ignore_eos=True, n=2, seed=3, logprobs=1, prompt_logprobs=0)
    chats = [[{"role": "user", "content": text}] for text in ("hello", "text")]
    expected = llm.generate([*chats, [5, 6, 7], messages], params)
    assert [line["index"] for line in printed] == [0, 1, 2, 3]
    for line, wanted in zip(printed, expected, strict=True):
        assert tokens(line) == [each.token_ids for each in wanted.outputs]
        assert [o["text"] for o in line["outputs"]] == [each.text for each in wanted.outputs]
        assert {o["finish_reason"] for o in line["outputs"]} == {"length"}
        assert (line["prompt"], line["prompt_token_ids"]) == (wanted.prompt, wanted.prompt_token_ids)
        assert len(line["prompt_logprobs"]) == len(wanted.prompt_token_ids)
        assert 0 < line["metrics"]["first_token_seconds"] <= line["metrics"]["seconds"]


def test_text_is_asked_unless_raw(cli: Cli, tiny: list[str], llm: LLM) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0)
    asked = llm.chat([{"role": "user", "content": "hi"}], params).outputs[0].text
    with_system = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    for options, wanted in (
        ([], asked),
        (["--chat"], asked),
        (["--system", "s"], llm.chat(with_system, params).outputs[0].text),
        (["--raw"], llm.generate("hi", params)[0].outputs[0].text),
    ):
        assert cli("generate", *tiny, *GREEDY, "--prompt", "hi", *options)[:2] == (0, wanted + "\n")


def test_many_answers_stand_under_their_prompts_in_order(cli: Cli, tiny: list[str], tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("second\n\nthird, which is longer\n")
    code, output, errors = cli(
        "generate", *tiny, *GREEDY, "-n", "2", "--prompt", "first", "-f", file, "--max-num-seqs", 2
    )
    assert code == 0
    titles = [line for line in output.splitlines() if line.startswith("[")]
    assert titles == ["[1] first", "[2] second", "[3] third, which is longer"]
    assert output.count("(1) ") == output.count("(2) ") == 3
    assert "3 requests: " in errors
    assert "36 output tokens" in errors
    assert "up to 2 sequences at once" in errors
    assert "6 answers of 6 ended at --max-tokens" in errors
    assert "KV cache: " in errors


def test_prompts_may_be_piped_and_notes_silenced(cli: Cli, tiny: list[str]) -> None:
    for options in ([], ["--file", "-"]):
        code, output, errors = cli("generate", *tiny, *GREEDY, "--quiet", *options, stdin="one\ntwo\n")
        assert (code, errors) == (0, "")
        assert [line for line in output.splitlines() if line.startswith("[")] == ["[1] one", "[2] two"]


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_an_allocator_changes_no_token(allocator: str, cli: Cli, tiny: list[str], llm: LLM) -> None:
    options = ["--raw", "--prompt", "a", "-n", 3, "--seed", 5, "--json", "--allocator", allocator]
    code, output, _ = cli("generate", *tiny, *SHORT, *options)
    assert code == 0
    (expected,) = llm.generate("a", SamplingParams(max_tokens=6, ignore_eos=True, n=3, seed=5))
    assert tokens(json.loads(output)) == [sample.token_ids for sample in expected.outputs]
    assert len({tuple(sample.token_ids) for sample in expected.outputs}) > 1


BAD = [
    (["--model", "no-such-model"], ["no model 'no-such-model'", "smollm2-135m"]),
    (["--model", "smollm2-135"], ["Did you mean smollm2-135m?"]),
    (["--prompt", ""], ["prompt is empty"]),
    (["--n", "0"], ["n is 0", "1 to"]),
    (["--temperature", "-1"], ["temperature", "from 0 to 100"]),
    (["--temperature", "nan"], ["temperature", "nan"]),
    (["--top-p", "0"], ["top_p"]),
    (["--stop", ""], ["stop"]),
    (["--logit-bias", "x"], ["logit_bias", "TOKEN_ID=BIAS"]),
    (["--stop-token-id", "999"], ["stop_token_ids", "999"]),
    (["--max-tokens", "1000"], ["1000", "256"]),
    (["--prompt", "x" * 500], ["256"]),
    (["--kv-cache-memory", "10"], ["too small for one block", "hint: Give at least"]),
    (["--kv-cache-memory", "lots"], ["no memory size", "2GiB"]),
    (["--allocator", "slab"], ["no allocator 'slab'", "contiguous-oracle"]),
    (["--dtype", "int3"], ["dtype 'int3'", "bfloat16"]),
    (["--watermark", "2"], ["watermark"]),
    (["--block-size", "0"], ["block_size"]),
    (["--file", "/no/such/file"], ["/no/such/file", "No such file"]),
]


@pytest.mark.parametrize(("options", "messages"), BAD, ids=[" ".join(options)[:40] for options, _ in BAD])
def test_bad_input_is_explained_and_nothing_runs(
    options: list[str], messages: list[str], cli: Cli, tiny: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*_arguments: Any) -> Any:
        raise AssertionError("the model ran")

    monkeypatch.setattr(LOADED, "forward", forward)
    code, output, errors = cli("generate", *tiny, "--prompt", "fine", *options)
    assert (code, output) == (2, ""), errors
    assert "error: " in errors
    assert "Traceback" not in errors
    for message in messages:
        assert message in errors


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no prompt"),
        ('{"prompt": "a"\nplain', "line 1 of standard input is no JSON"),
        (' {"prompt"', "begins with"),
        ('{"prompt": ' + "[" * 100_000, "line 1 of standard input is no JSON"),
        (b"odd \xff", "standard input is no UTF-8 text: byte 4"),
        ("\n \n", "no prompt"),
        ('{"prompt": "a"}\nplain', "line 2 of standard input is no JSON"),
        ('{"prompt": "a", "temperature": 1}', "the keys prompt, temperature"),
        ("{}", "neither prompt nor messages"),
        ('{"prompt": ""}', "empty or unreadable"),
        ('{"prompt": 5}', "empty or unreadable"),
        ('{"messages": []}', "empty or unreadable"),
        ('{"messages": [{"role": "user"}]}', "no content"),
        ('{"prompt": [1, 300]}', "outside the vocabulary"),
        ('{"prompt": [1, "a"]}', "'a', a str"),
    ],
)
def test_bad_prompts_are_explained(content: str | bytes, message: str, cli: Cli, tiny: list[str]) -> None:
    code, output, errors = cli("generate", *tiny, "--file", "-", stdin=content)
    assert (code, output) == (2, "")
    assert message in errors


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_only_line_feeds_end_a_prompt(ending: str, bom: bytes, tmp_path: Path) -> None:
    prompts = ["one\u2028still one", "two\u0085\u2029", "three\v\f\x1c\x1d", "four\rfour"]
    file = tmp_path / "prompts"
    file.write_bytes(bom + ending.join([*prompts, "", ""]).encode())
    assert gather_prompts((), str(file)) == prompts
    lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in prompts]
    file.write_bytes(bom + ending.join(lines).encode())
    assert gather_prompts((), str(file)) == prompts


def test_an_answer_that_failed_does_not_pass_for_one(
    cli: Cli, tiny: list[str], not_numbers_at: Callable[[int], None]
) -> None:
    not_numbers_at(3)
    prompts = ["--prompt", "a", "--prompt", "b", "--max-num-seqs", "1", "--json"]
    code, output, errors = cli("generate", *tiny, *GREEDY, *prompts, "--quiet")
    assert code == 1
    finished = [json.loads(line)["outputs"][0] for line in output.splitlines()]
    assert [(each["finish_reason"], len(each["token_ids"])) for each in finished] == [("error", 2), ("length", 6)]
    assert errors.startswith("1 answer of 2 failed: ")


def failing_at(call: int, error: BaseException, forward: Callable[..., Any]) -> Callable[..., Any]:
    calls = iter(range(1, 10**6))

    def fails(*arguments: Any) -> Any:
        if next(calls) == call:
            raise error
        return forward(*arguments)

    return fails


def test_ctrl_c_keeps_what_is_finished(cli: Cli, tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOADED, "forward", failing_at(10, KeyboardInterrupt(), LOADED.forward))
    prompts = ["--prompt", "a", "--prompt", "b", "--max-num-seqs", "1"]
    code, output, errors = cli("generate", *tiny, *GREEDY, *prompts)
    assert code == 130
    assert [line for line in output.splitlines() if line.startswith("[")] == ["[1] a"]
    assert "Interrupted" in errors
    assert "Traceback" not in errors


def test_an_unexpected_error_is_exit_code_1(cli: Cli, tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOADED, "forward", failing_at(1, RuntimeError("[odd]"), LOADED.forward))
    code, _, errors = cli("generate", *tiny, *GREEDY, "--prompt", "a")
    assert code == 1
    assert "unexpected RuntimeError: [odd]" in errors
    assert "--debug" in errors
    assert "Traceback" not in errors
    monkeypatch.setattr(LOADED, "forward", failing_at(1, RuntimeError("[odd]"), LOADED.forward))
    code, _, errors = cli("generate", *tiny, *GREEDY, "--prompt", "a", "--debug")
    assert code == 1
    assert "Traceback" in errors


@pytest.mark.parametrize("options", [[], ["--json"], ["--prompt", "b"]], ids=["text", "json", "titled"])
def test_a_reader_that_leaves_early_is_no_error_message(options: list[str], tiny: list[str]) -> None:
    program = "from looseleaf.cli.main import main\nmain()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "generate", *tiny, *SHORT, "--prompt", "a", "--quiet", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait() == BROKEN_PIPE


def test_what_the_cache_had_is_explained(cli: Callable[..., tuple[int, str, str]], tiny: list[str]) -> None:
    asked = [option for text in ("abcdefgh", "abcdXfgh", "abcdefgh") for option in ("--prompt", text)]
    code, _, notes = cli(
        "generate", *tiny, "--raw", "--max-tokens", 1, "--max-num-seqs", 1, "--block-size", 4, "--explain-cache", *asked
    )
    assert code == 0
    first, second, third = re.findall(r"\[\d\] (\d of 8 prompt tokens from the cache.*)", notes)
    assert first == "0 of 8 prompt tokens from the cache. No cached prompt goes on differently there."
    assert second.startswith("4 of 8 prompt tokens from the cache. The prompt parts from the most similar cached one")
    assert second.endswith("at token 4 of 8, after 'abcd': 'X' here, 'e' there.")
    assert third == "7 of 8 prompt tokens from the cache. All that can be: the last one is always computed."
