"""`looseleaf plan` and `looseleaf explain-log` as they are typed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "tuple[int, str, str]"]
LOGS = Path(__file__).parents[1] / "plan" / "logs"


def test_what_fits_is_printed_with_every_term(cli: Run) -> None:
    code, output, _ = cli("plan", "--model", "llama-3.1-8b", "--num-blocks", 1952, "--max-model-len", 20_000)
    assert code == 0
    text = " ".join(output.split())
    for words in ("131,072 B", "32 × 4,096 B", "1,250 blocks", "31,232", "1.56×", "2.44 GiB"):
        assert words in text


def test_a_request_that_does_not_fit_ends_with_bad_input(cli: Run) -> None:
    arguments = ("plan", "-m", "llama-3.1-8b", "--num-blocks", 1478, "--max-model-len", 29_000)
    code, output, errors = cli(*arguments)
    assert code == 2
    assert "0.82×" in output
    assert "REFUSED" in output
    assert "max_model_len 23,648" in output
    assert "up to 23,648 tokens would fit" in errors
    code, output, _ = cli(*arguments, "--json")
    assert code == 2
    found = json.loads(output)
    assert found["figures"]["fits"] is False
    assert found["changes"][0]["kind"] == "cache"


def test_json_has_the_figures_by_name(cli: Run, tmp_path: Path) -> None:
    sheet = tmp_path / "plan.csv"
    code, output, _ = cli(
        "plan", "-m", "gpt-oss-120b", "-H", "h100", "--max-num-batched-tokens", 1024, "--json", "--csv", sheet,
        "--lengths", "prompt=800-1200,output=100",
    )  # fmt: skip
    assert code == 0
    found = json.loads(output)
    figures = found["figures"]
    assert figures["kv_slope_per_token"] == 36_864
    assert round(figures["request_bytes_at_max_model_len"] / 2**30, 2) == 4.54
    assert figures["concurrency_at_lengths"] > figures["concurrency_at_ends"] > 100
    assert found["settings"]["hardware"]["name"] == "h100"
    assert "gpt-oss-120b" in sheet.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-m", "lama-3.1-8b", "-H", "h100"), "llama-3.1-8b"),
        (("-m", "llama-3.1-8b", "-H", "h1000"), "h100"),
        (("-m", "llama-3.1-8b"), "--hardware"),
        (("-H", "h100"), "--model"),
        (("-m", "llama-3.1-8b", "-H", "xeon-8480"), "xeon-8480:64GiB"),
        (("-m", "llama-3.1-8b", "-H", "h100", "--lengths", "long"), "prompt=N"),
        (("-m", "llama-3.1-8b", "-H", "h100", "--tensor-parallel-size", 3), "32 attention heads"),
    ],
)
def test_bad_input_says_what_to_do(cli: Run, arguments: tuple[object, ...], words: str) -> None:
    code, output, errors = cli("plan", *arguments)
    assert code == 2
    assert output == ""
    assert words in errors


def test_an_unknown_architecture_is_refused(cli: Run, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architectures": ["HyenaForCausalLM"], "model_type": "hyena"}), encoding="utf-8")
    code, output, errors = cli("plan", "-m", config, "-H", "h100")
    assert (code, output) == (2, "")
    assert "'hyena', which is not known" in errors
    assert "need" in errors


def test_the_hardware_is_listed(cli: Run) -> None:
    code, output, _ = cli("plan", "-H", "list")
    assert code == 0
    assert "rtx-4090" in output
    code, output, _ = cli("plan", "-H", "list", "--json")
    assert {"h100", "epyc-9654"} <= {each["name"] for each in json.loads(output)}


def test_a_gguf_file_is_a_model_too(cli: Run, smollm2_gguf: Path) -> None:
    code, output, _ = cli("plan", "-m", smollm2_gguf, "-H", "2GiB", "--json")
    assert code == 0
    found = json.loads(output)
    assert found["figures"]["kv_bytes_per_token"] == 23_040
    assert found["figures"]["parameters"] == 134_515_008
    assert 90e6 < found["figures"]["weight_bytes"] < 98_362_432  # the file without its header


def test_a_log_is_explained(cli: Run) -> None:
    code, output, _ = cli("explain-log", LOGS / "vllm_v0_refused.log", "-m", "llama-3.1-8b")
    assert code == 0
    text = " ".join(output.split())
    assert "REFUSED: one request of 29,000 tokens" in text
    assert "NO" not in text.replace("NOT", "")


def test_a_log_may_be_piped_in(cli: Run) -> None:
    log = (LOGS / "sglang.log").read_text(encoding="utf-8")
    code, output, _ = cli("explain-log", "-", "--json", stdin=log)
    assert code == 0
    assert json.loads(output)["engine"] == "SGLang"
    code, _, errors = cli("explain-log", "-", stdin="nothing")
    assert code == 2
    assert "start-up line" in errors
    code, _, errors = cli("explain-log", "/absent.log")
    assert code == 2
    assert "cannot be read" in errors


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOOSELEAF_CACHE", str(tmp_path))


TRAFFIC = (
    "plan", "-m", "llama-3.1-8b", "-H", "rtx-4090", "--max-model-len", 4096, "--max-num-seqs", 256, "--quiet",
    "--trace", "n=60,arrivals=poisson:20,prompt=uniform:100-200,output=uniform:50-100,seed=1",
)  # fmt: skip


@pytest.mark.usefixtures("own_cache")
def test_the_smallest_pool_of_a_trace(cli: Run, tmp_path: Path) -> None:
    code, output, errors = cli(*TRAFFIC, "--slo", "ttft=1s", "--json", "--csv", tmp_path / "plan.csv")
    assert (code, errors) == (0, "")
    found = json.loads(output)["smallest_pool"]
    by_size = {each["num_blocks"]: each for each in found["tries"]}
    answer = by_size[found["num_blocks"]]
    assert answer["meets"]
    assert answer["bytes"] == found["bytes"] == found["num_blocks"] * 2 * 2**20
    assert found["num_blocks"] < found["device_blocks"]
    assert all(not each["meets"] for size, each in by_size.items() if size < found["num_blocks"])
    assert "smallest pool" in (tmp_path / "plan.csv").read_text(encoding="utf-8")
    code, output, _ = cli(*TRAFFIC, "--slo", "ttft=1s")
    text = " ".join(output.split())
    assert f"{found['num_blocks']:,} blocks" in text
    assert "more than it takes" in text


@pytest.mark.usefixtures("own_cache")
def test_a_target_that_no_pool_can_meet(cli: Run) -> None:
    code, output, errors = cli(*TRAFFIC, "--slo", "itl=1ms")
    assert code == 2
    assert "tokens that fit" in output
    assert "No pool meets the target" in errors


def test_traffic_that_makes_no_sense(cli: Run) -> None:
    assert "--trace" in cli("plan", "-m", "llama-3.1-8b", "-H", "h100", "--slo", "ttft=1s")[2]
    assert "one of them" in cli(*TRAFFIC, "--lengths", "prompt=1,output=1")[2]
    assert cli("plan", "-m", "llama-3.1-8b", "-H", "h100", "--trace", "/absent.jsonl")[0] == 2
    code, _, errors = cli("plan", "-m", "llama-3.1-8b", "-H", "32GiB", "--trace", TRAFFIC[-1], "--slo", "ttft=1s")
    assert code == 2
    assert "bandwidth" in errors
