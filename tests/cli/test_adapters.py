"""Adapters on the command line: loaded by --lora, asked for by --adapter or by a workload file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from looseleaf import LLM, SamplingParams
from tiny_adapter import write_adapter
from tiny_model import tiny_model

Cli = Callable[..., tuple[int, str, str]]

GREEDY = ["--max-tokens", "6", "--ignore-eos", "--temperature", "0"]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter"), tiny_model().config)


@pytest.fixture(scope="module")
def texts(tiny_folder: Path, adapter: Path) -> dict[str | None, str]:
    """The answer to "hi" without and with the adapter."""
    llm = LLM(tiny_folder, dtype="float32", kv_cache_memory="128KB", max_model_len=256, lora={"sql": adapter})
    params = SamplingParams(max_tokens=6, ignore_eos=True, temperature=0)
    chat = [{"role": "user", "content": "hi"}]
    return {name: llm.chat(chat, params, adapter=name).outputs[0].text for name in (None, "sql")}


def test_generate_and_chat_answer_with_it(
    cli: Cli, tiny: list[str], adapter: Path, texts: dict[str | None, str]
) -> None:
    lora = ["--lora", f"sql={adapter}", "--lora", f"other={adapter}"]
    assert cli("generate", *tiny, *GREEDY, *lora, "--prompt", "hi")[:2] == (0, texts[None] + "\n")
    assert cli("generate", *tiny, *GREEDY, *lora, "--adapter", "sql", "--prompt", "hi")[:2] == (0, texts["sql"] + "\n")
    assert cli("chat", *tiny, *GREEDY, *lora, "--adapter", "sql", stdin="hi\n")[:2] == (0, texts["sql"] + "\n")
    assert texts[None] != texts["sql"]


def test_a_workload_names_adapters_request_by_request(cli: Cli, tiny: list[str], adapter: Path, tmp_path: Path) -> None:
    file = tmp_path / "work.json"
    request = {"prompt": [5, 6, 7], "n_out": 3}
    file.write_text(json.dumps({"warmup": [request], "T": [[request, request | {"adapter": "sql"}]]}))
    lora = ["--lora", f"sql={adapter}"]
    for options in ([], ["--adapter", "sql"]):
        code, output, _ = cli("bench", file, *tiny, *lora, *options, "--json")
        assert code == 0
        (setting,) = json.loads(output)["T"]["settings"].values()
        assert setting["runs"][0]["output_tokens"] == 6
    code, _, error = cli("bench", file, *tiny, "--json")
    assert (code, "no adapter 'sql'" in error) == (2, True)
    file.write_text(json.dumps({"T": [request | {"adapter": 3}]}))
    code, _, error = cli("bench", file, *tiny)
    assert (code, "T[0].adapter is 3" in error) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--adapter", "sq"], "There is no adapter 'sq'"),
        (["--lora", "sql"], "'sql' names no adapter"),
        (["--lora", "sql="], "names no adapter"),
        (["--lora", "a=x", "--lora", "a=y"], "Two adapters are called 'a'"),
        (["--lora", "a=/no/such/folder"], "no adapter folder /no/such/folder"),
        (["--lora", f"{'a' * 300}=x"], "300 characters"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_what_is_wrong_is_said_and_nothing_runs(
    command: str, options: list[str], message: str, cli: Cli, tiny: list[str]
) -> None:
    prompt = ["--prompt", "hi"] if command == "generate" else []
    code, output, error = cli(command, *tiny, *GREEDY, *options, *prompt, stdin="hi\n")
    assert (code, output) == (2, "")
    assert message in error


def test_every_command_with_an_engine_loads_adapters(cli: Cli, tiny_folder: Path, adapter: Path) -> None:
    code, _, error = cli("show-memory", "--model", tiny_folder, "--steps", "1", "--lora", f"sql={adapter}")
    assert code == 0
    assert "LoRA adapters: sql." in error
