"""No setting is forgotten, no default differs, help is complete and quick."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from looseleaf import __version__
from looseleaf.cli.options import EngineOptions, SamplingOptions, count_or_none, parse_logit_bias
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.sampling_errors import InvalidGrammar, InvalidParameter
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.errors import InvalidRequest
from looseleaf.memory.factory import ALLOCATORS

COMMANDS = ("generate", "chat", "serve", "bench", "calibrate", "show-memory", "quality", "models", "env")
OPTION_OF = {
    "include_stop_str_in_output": "--include-stop",
    "stop_token_ids": "--stop-token-id",
    "skip_special_tokens": "--keep-special",
    "structured": "--json-schema",
}
NO_OPTION = {"detokenize"}  # text is what the command line shows


def test_defaults_are_the_engines() -> None:
    assert EngineOptions().config() == EngineConfig()
    assert SamplingOptions().params() == SamplingParams()


def test_every_setting_reaches_the_engine(tmp_path: Path) -> None:
    engine = EngineOptions(
        dtype="bfloat16",
        quantization="int8",
        lora=["sql=./sql", "legal=/a=b"],
        kv_cache_dtype="int8",
        kv_cache_memory="1GiB",
        lock_memory=True,
        block_size=8,
        allocator="contiguous-pow2",
        enable_prefix_caching=False,
        cascade_attention="off",
        max_pinned_share=0.5,
        watermark=0.5,
        max_model_len=100,
        max_num_seqs=3,
        max_num_batched_tokens=77,
        max_bypass=2,
        scheduling_policy="fair",
        priority_ageing_seconds=3.5,
        engine_seed=9,
    ).config()
    beams = SamplingOptions(n=2, beam_width=3, length_penalty=0.5, early_stopping="never").params()
    assert (beams.n, beams.beam_width, beams.length_penalty, beams.early_stopping) == (2, 3, 0.5, "never")
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "null"}')
    for option, structured in (
        (SamplingOptions(json_schema=str(schema)), {"json_schema": {"type": "null"}}),
        (SamplingOptions(regex="a+"), {"regex": "a+"}),
        (SamplingOptions(choice=["a", "b"]), {"choice": ["a", "b"]}),
    ):
        assert option.params().structured == structured
    sampling = SamplingOptions(
        max_tokens=7,
        min_tokens=2,
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.5,
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        logit_bias=["5=-1.5", "6=2"],
        stop=["a", "b"],
        stop_token_ids=[1, 2],
        include_stop_str_in_output=True,
        ignore_eos=True,
        n=2,
        best_of=4,
        seed=11,
        logprobs=1,
        prompt_logprobs=0,
        skip_special_tokens=False,
    ).params()
    for value, default in ((engine, EngineConfig()), (sampling, SamplingParams())):
        unchanged = {f.name for f in fields(value) if getattr(value, f.name) == getattr(default, f.name)}
        elsewhere = {"beam_width", "length_penalty", "early_stopping", "structured"}
        assert unchanged == (elsewhere | NO_OPTION if value is sampling else set())
    assert (engine.seed, engine.block_size, engine.allocator) == (9, 8, "contiguous-pow2")
    assert sampling.logit_bias == {5: -1.5, 6: 2.0}
    assert (sampling.seed, sampling.stop, sampling.stop_token_ids) == (11, ("a", "b"), (1, 2))


def test_help_names_every_setting(cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 200)
    code, text, _ = cli("generate", "--help")
    assert code == 0
    named = set(re.findall(r"--[\w-]+", text))
    settings = [f.name for f in (*fields(EngineConfig), *fields(SamplingParams))]
    expected = {OPTION_OF.get(name, "--" + name.replace("_", "-")) for name in settings if name not in NO_OPTION}
    assert expected | {"--engine-seed", "--threads", "--model"} <= named
    assert all(allocator in text for allocator in ALLOCATORS)
    for panel in ("Model", "Memory", "Scheduling", "Sampling", "Output"):
        assert re.search(rf"─ {panel} ─", text)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_in_80_columns(name: str, cli: Callable[..., tuple[int, str, str]]) -> None:
    code, text, _ = cli(name, "--help")
    assert code == 0
    assert "Usage: looseleaf " + name in text
    assert all(len(line) <= 80 for line in text.splitlines())
    code, overview, _ = cli("--help")
    assert code == 0
    assert name in overview


def test_version(cli: Callable[..., tuple[int, str, str]]) -> None:
    assert cli("--version")[:2] == (0, f"looseleaf {__version__}\n")


@pytest.mark.parametrize("arguments", [["--help"], ["generate", "--help"], ["models", "--json"]])
def test_what_needs_no_model_does_not_pay_for_torch(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "from looseleaf.cli.main import make_app\n"
        f"make_app()({arguments!r}, standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-tokens", "many"], "neither a whole number"),
        (["--temperature", "warm"], "Invalid value for '--temperature'"),
        (["--no-such-option"], "No such option"),
        (["--threads", "0"], "Invalid value for '--threads'"),
    ],
)
def test_an_option_that_cannot_be_read(
    arguments: list[str], message: str, cli: Callable[..., tuple[int, str, str]]
) -> None:
    code, output, errors = cli("generate", "--prompt", "a", *arguments)
    assert (code, output) == (2, "")
    assert message in errors


@pytest.mark.parametrize("options", [{"json_schema": "/no/such/file"}, {"regex": "a", "choice": ["b"]}, {"regex": ""}])
def test_a_structure_that_cannot_be_read(options: dict[str, Any]) -> None:
    with pytest.raises((InvalidGrammar, InvalidParameter), match=r"structured|JSON|empty"):
        SamplingOptions(**options).params()


@given(st.integers(-(10**9), 10**9))
def test_counts(value: int) -> None:
    assert count_or_none(str(value)) == count_or_none(value) == value
    assert count_or_none("none") is count_or_none(None) is None


def test_a_count_that_is_none_of_these() -> None:
    with pytest.raises(typer.BadParameter):
        count_or_none("1.5")


@pytest.mark.parametrize("entry", ["", "5", "5=", "5=x", "=1", "x=1", "-1=1", "5=1000"])
def test_a_logit_bias_that_cannot_be_read(entry: str) -> None:
    with pytest.raises(InvalidRequest, match="logit_bias"):
        SamplingOptions(logit_bias=[entry]).params()
    assert parse_logit_bias([]) is None
