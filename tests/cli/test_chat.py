"""`looseleaf chat`: turns are remembered, the context never overflows, and Ctrl-C stops the answer only."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from looseleaf import LLM, SamplingParams
from looseleaf.cli.command import BROKEN_PIPE
from looseleaf.cli.conversation import Conversation
from looseleaf.cli.interrupt import Interrupt
from looseleaf.errors import RequestTooLarge
from tiny_model import tiny_engine, tiny_model, write_tiny_folder

Cli = Callable[..., tuple[int, str, str]]

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PROGRAM = "from looseleaf.cli.main import main; main()"


def test_each_turn_sees_those_before_it(tiny_folder: Path) -> None:
    llm = LLM(tiny_folder, dtype="float32", kv_cache_memory="128KB")
    conversation = Conversation(llm.engine, GREEDY, "be brief")
    messages = [{"role": "system", "content": "be brief"}]
    for question in ("one", "two", "three"):
        messages.append({"role": "user", "content": question})
        expected = llm.chat(messages, GREEDY)
        assert "".join(conversation.ask(question)) == expected.outputs[0].text
        messages.append({"role": "assistant", "content": expected.outputs[0].text})
        assert conversation.messages == messages
        cost = conversation.cost
        assert (cost.prompt_tokens, cost.output_tokens) == (len(expected.prompt_token_ids), 6)
        assert cost.peak_blocks == -(-(cost.prompt_tokens + 5) // 16)
        assert cost.dropped_turns == 0
    conversation.reset()
    assert conversation.messages == messages[:1]


def test_a_stopped_answer_is_remembered_as_far_as_it_came() -> None:
    engine = tiny_engine(tiny_model())
    conversation = Conversation(engine, SamplingParams(temperature=0, max_tokens=50, ignore_eos=True), None)
    pieces = conversation.ask("q")
    heard = next(pieces) + next(pieces)
    pieces.close()
    assert conversation.messages[-1]["content"].startswith(heard)
    assert conversation.cost.output_tokens == 2
    assert engine.memory.num_free_blocks == engine.memory.num_blocks
    assert not engine.has_unfinished()
    assert list(conversation.ask("again"))


def test_by_default_old_turns_make_room_for_a_whole_answer() -> None:
    engine = tiny_engine(tiny_model(), max_model_len=96)
    conversation = Conversation(engine, SamplingParams(temperature=0), None)
    for number in range(8):
        list(conversation.ask(f"question {number}"))
        assert conversation.cost.prompt_tokens <= 96 // 2


@pytest.mark.parametrize("max_tokens", [6, None])
def test_a_full_context_forgets_the_oldest_turns(max_tokens: int | None) -> None:
    engine = tiny_engine(tiny_model(), max_model_len=96)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, stop_token_ids=[], min_tokens=1)
    conversation = Conversation(engine, params, "s")
    dropped = 0
    for number in range(12):
        list(conversation.ask(f"question {number}"))
        dropped += conversation.cost.dropped_turns
        messages = conversation.messages
        assert messages[0] == {"role": "system", "content": "s"}
        assert [m["role"] for m in messages[1:]] == ["user", "assistant"] * ((len(messages) - 1) // 2)
        assert messages[-2]["content"] == f"question {number}"
        assert (len(messages) - 1) // 2 == number + 1 - dropped
        assert conversation.cost.prompt_tokens + conversation.cost.output_tokens <= 96
    assert dropped > 0


def test_a_question_that_never_fits_changes_nothing() -> None:
    engine = tiny_engine(tiny_model(), max_model_len=64)
    conversation = Conversation(engine, GREEDY, None)
    list(conversation.ask("hi"))
    before = conversation.messages
    with pytest.raises(RequestTooLarge):
        conversation.ask("x" * 90)
    assert conversation.messages == before
    assert list(conversation.ask("go on"))


def test_an_answer_can_be_stopped_between_the_chunks_of_its_question() -> None:
    engine = tiny_engine(tiny_model(), max_num_batched_tokens=8)
    conversation = Conversation(engine, GREEDY, None)
    pieces = conversation.ask("a question of many chunks")
    assert next(pieces) == next(pieces) == ""
    pieces.close()
    assert conversation.cost.output_tokens == 0
    assert engine.memory.num_free_blocks == engine.memory.num_blocks
    assert not engine.has_unfinished()
    assert "".join(conversation.ask("again"))


def test_interrupt_only_asks_however_often() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupt() as interrupt:
        assert not interrupt.requested
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
            assert interrupt.requested
    assert signal.getsignal(signal.SIGINT) is before


def test_a_piped_chat(cli: Cli, tiny: list[str], tiny_folder: Path) -> None:
    llm = LLM(tiny_folder, dtype="float32", kv_cache_memory="128KB")
    first = [{"role": "user", "content": "one"}]
    answer = llm.chat(first, GREEDY).outputs[0].text
    follow_up = [*first, {"role": "assistant", "content": answer}, {"role": "user", "content": "two"}]
    options = ["--temperature", "0", "--max-tokens", "6", "--ignore-eos"]
    typed = f"one\ntwo\n{'x' * 400}\n/nonsense\n\n/reset\none\n/exit\nnever\n"
    code, output, errors = cli("chat", *tiny, *options, stdin=typed)
    assert code == 0
    assert output == f"{answer}\n{llm.chat(follow_up, GREEDY).outputs[0].text}\n{answer}\n"
    assert len(re.findall("^6 tokens, ", errors, re.MULTILINE)) == 3
    assert re.search(r"up to \d+ of 31 blocks, context \d+ of 256 tokens", errors)
    assert "error: Request 'this conversation' needs" in errors
    assert "no command /nonsense" in errors
    assert "forgotten" in errors


def test_an_answer_that_fails_is_reported_and_the_chat_goes_on(
    cli: Cli, tiny: list[str], not_numbers_at: Callable[[int], None]
) -> None:
    not_numbers_at(3)
    options = ["--temperature", "0", "--max-tokens", "6", "--ignore-eos"]
    code, _, errors = cli("chat", *tiny, *options, stdin="one\ntwo\n")
    assert code == 0
    assert re.findall(r"^(\d) tokens, ", errors, re.MULTILINE) == ["2", "6"]
    assert errors.count("error: The answer failed: ") == 1


def test_a_piped_line_that_is_no_text_is_reported_and_passed_over(tiny: list[str]) -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, "chat", *tiny, "--quiet", "--temperature", "0", "--max-tokens", "4"],
        input=b"\xef\xbb\xbf/reset\nodd \xff\n/exit\nnever\n",
        capture_output=True,
        check=True,
    )
    assert process.stdout == b""
    assert b"error: Line 2 of standard input is no UTF-8 text: byte 4 is wrong." in process.stderr


def test_a_model_without_a_template_cannot_chat(cli: Cli, tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "model")
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    code, output, errors = cli("chat", "--model", folder, "--dtype", "float32", stdin="hi\n")
    assert (code, output) == (2, "")
    assert "no chat template" in errors


class Terminal:
    """A program on a terminal of its own, where Ctrl-C is a key."""

    def __init__(self, arguments: list[str], *, stdout: Path | None = None) -> None:
        self.pid, self._keyboard = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests that run in the background inherit that it is ignored
            os.environ["TERM"] = "dumb"
            if stdout is not None:
                os.dup2(os.open(stdout, os.O_CREAT | os.O_WRONLY), 1)
            os.execv(sys.executable, [sys.executable, *arguments])
        self.screen = ""

    def type(self, keys: str) -> None:
        os.write(self._keyboard, keys.encode())

    def wait_for(self, pattern: str, seconds: float = 60) -> None:
        """Until the screen shows `pattern` beyond what was matched before."""
        end = time.monotonic() + seconds
        while not (match := re.search(pattern, self.screen)):
            readable, _, _ = select.select([self._keyboard], [], [], max(end - time.monotonic(), 0))
            assert readable, f"no {pattern!r} on the screen: {self.screen!r}"
            self.screen += self._read()
        self.screen = self.screen[match.end() :]

    def exit_code(self) -> int:
        while self._read():
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._keyboard)
        return code

    def _read(self) -> str:
        try:
            return os.read(self._keyboard, 65536).decode(errors="replace")
        except OSError:  # the program has left
            return ""


def test_ctrl_c_stops_the_answer_and_not_the_chat(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "model", tiny_model(max_position_embeddings=100_000))
    options = ["--dtype", "float32", "--kv-cache-memory", "20MB", "--temperature", "0", "--ignore-eos"]
    terminal = Terminal(["-c", PROGRAM, "chat", "--model", str(folder), *options, "--max-tokens", "30000"])
    terminal.wait_for("> ")
    for question in ("first", "second"):
        terminal.type(f"{question}\r")
        terminal.wait_for(f"{question}\r\n[^\r]{{5}}")
        terminal.type("\x03")
        terminal.wait_for(r"stopped; \d+ tokens")
        terminal.wait_for("> ")
    terminal.type("draft")
    terminal.wait_for("draft")
    time.sleep(0.3)  # CPython's readline misses a signal that arrives just before it waits for the next key
    terminal.type("\x03")
    terminal.wait_for("Ctrl-C again to leave")
    terminal.wait_for("> ")
    terminal.type("/help\r")
    terminal.wait_for("/reset forgets")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.exit_code() == 0


def test_ctrl_c_stops_the_reading_of_a_long_question(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "model", tiny_model(max_position_embeddings=100_000))
    options = ["--dtype", "float32", "--kv-cache-memory", "30MB", "--max-num-batched-tokens", "8", "--max-tokens", "5"]
    terminal = Terminal(["-c", PROGRAM, "chat", "--model", str(folder), *options, "--system", "x" * 60_000])
    terminal.wait_for("> ")
    for keys in ("\x03", "\x03\x03"):
        terminal.type("hello\r")
        terminal.wait_for("hello\r\n")
        time.sleep(0.3)  # into the chunks; much too short to read them all
        terminal.type(keys)
        terminal.wait_for("stopped; 0 tokens; up to")
        terminal.wait_for("> ")
    terminal.type("/exit\r")
    assert terminal.exit_code() == 0


def test_the_prompt_does_not_get_among_redirected_answers(tiny: list[str], tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    options = ["--quiet", "--temperature", "0", "--max-tokens", "4", "--ignore-eos"]
    terminal = Terminal(["-c", PROGRAM, "chat", *tiny, *options], stdout=answers)
    terminal.wait_for("> ")
    terminal.type("hello\r")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.exit_code() == 0
    answer = LLM(tiny[1], dtype="float32", kv_cache_memory="128KB").chat(
        [{"role": "user", "content": "hello"}], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    )
    assert answers.read_text() == answer.outputs[0].text + "\n"


def test_a_chat_whose_reader_leaves_ends_quietly(tiny: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "chat", *tiny, "--quiet", "--max-tokens", "20"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate("hi\n" * 3)
    assert process.returncode == BROKEN_PIPE
    assert errors == ""
