"""Finds the memory figures in start-up logs of vLLM and SGLang, whatever else the lines say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Engine: TypeAlias = Literal["vLLM", "SGLang"]

_NUMBER = r"(-?\d[\d,_]*(?:\.\d+)?)"
_GIB = r"\s*(?:GiB|GB)"
"""vLLM writes GiB, SGLang GB; both divide by 2^30."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A line of one engine, and the names of its numbers. Names that end in _gib are in GiB, _pct in percent."""

    engine: Engine
    regex: re.Pattern[str]
    names: tuple[str, ...]


def _pattern(engine: Engine, regex: str, *names: str) -> Pattern:
    return Pattern(engine, re.compile(regex.replace("<n>", _NUMBER).replace("<GiB>", _GIB)), names)


PATTERNS: tuple[Pattern, ...] = (
    # vLLM: what it was started with
    _pattern("vLLM", r"LLM engine \(v?([\w.+-]+)\)", "version"),
    _pattern("vLLM", r"max_seq_len=<n>", "max_model_len"),
    _pattern("vLLM", r"max_num_batched_tokens=<n>", "max_num_batched_tokens"),
    _pattern("vLLM", r"max_num_seqs=<n>", "max_num_seqs"),
    _pattern("vLLM", r"gpu_memory_utilization[\"']?[=:]\s*\(?<n>", "utilization"),
    _pattern("vLLM", r"tensor_parallel_size[\"']?[=:]\s*<n>", "ranks"),
    _pattern("vLLM", r"(?<!kernel_)block_size[\"']?[=:]\s*<n>", "block_size"),
    # vLLM: where the memory goes
    _pattern("vLLM", r"(?:Model loading took|Loading model weights took)\s+<n><GiB>", "weights_gib"),
    _pattern("vLLM", r"total_gpu_memory\s*[=(]\s*<n>\s*Gi?B", "device_gib"),
    _pattern("vLLM", r"gpu_memory_utilization\s*\(\s*<n>\s*\)", "utilization"),
    _pattern("vLLM", r"model weights take\s+<n><GiB>", "weights_gib"),
    _pattern("vLLM", r"non_torch_memory(?: takes\s+|=)<n><GiB>", "other_gib"),
    _pattern("vLLM", r"PyTorch activation peak memory takes\s+<n><GiB>", "activations_gib"),
    _pattern("vLLM", r"peak_torch_memory=<n><GiB>", "torch_peak_gib"),
    _pattern("vLLM", r"kv_cache_size=<n><GiB>", "cache_gib"),
    _pattern("vLLM", r"reserved for KV Cache is\s+<n><GiB>", "cache_gib"),
    _pattern("vLLM", r"Available KV cache memory:\s*<n><GiB>", "cache_gib"),
    _pattern("vLLM", r"[Gg]raph capturing finished in .*?took\s+<n><GiB>", "graphs_gib"),
    # vLLM: what fits
    _pattern("vLLM", r"(?:GPU|CPU|CUDA)?\s*KV cache size:\s*<n>\s*tokens", "tokens"),
    _pattern("vLLM", r"(?:# )?(?:GPU|CUDA|cuda|ROCm|rocm) blocks:\s*<n>", "blocks"),
    _pattern("vLLM", r"num_gpu_blocks(?: is)?\s*[:=]\s*<n>(?!\s*with)", "blocks"),
    _pattern("vLLM", r"num_gpu_blocks_override=<n>", "blocks_override"),
    _pattern("vLLM", r"Maximum concurrency for\s+<n>\s+tokens per request:\s*<n>x", "concurrency_len", "concurrency"),
    _pattern("vLLM", r"Setting attention block size to\s+<n>\s+tokens", "attention_block"),
    _pattern("vLLM", r"Padding mamba page size by\s+<n>%", "state_padding_pct"),
    # vLLM: why it did not start
    _pattern(
        "vLLM",
        r"max seq len \(<n>\) is larger than the maximum number of tokens that can be stored in KV cache \(<n>\)",
        "refused_len",
        "refused_tokens",
    ),
    _pattern(
        "vLLM",
        r"To serve at least one request with the models?'s max seq len\s*\(<n>\),\s*\(?<n><GiB> KV\s+cache is needed,"
        r"\s*which is larger than the available KV\s+cache\s+memory\s*\(<n><GiB>\)",
        "refused_len",
        "needed_gib",
        "available_gib",
    ),
    _pattern("vLLM", r"estimated maximum model length is\s+<n>", "estimated_len"),
    _pattern("vLLM", r"(No available memory for the cache blocks)", "no_memory"),
    _pattern(
        "vLLM",
        r"Free memory on device(?: \S+)? \(<n>/<n><GiB>\) on startup is less than desired GPU memory utilization "
        r"\(<n>, <n><GiB>\)",
        "free_gib",
        "device_gib",
        "utilization",
        "desired_gib",
    ),
    # SGLang
    _pattern("SGLang", r"mem_fraction_static=<n>", "mem_fraction"),
    _pattern("SGLang", r"(?:tp_size|tensor_parallel_size)=<n>", "ranks"),
    _pattern("SGLang", r"Load weight begin\. avail mem=<n><GiB>", "before_weights_gib"),
    _pattern("SGLang", r"Load weight end\..*?avail mem=<n><GiB>", "after_weights_gib"),
    _pattern("SGLang", r"Load weight end\..*?mem usage=<n><GiB>", "weights_gib"),
    _pattern("SGLang", r"KV Cache is allocated\..*?#tokens:\s*<n>", "tokens"),
    _pattern("SGLang", r"KV Cache is allocated\..*?K size:\s*<n><GiB>, V size:\s*<n><GiB>", "k_gib", "v_gib"),
    _pattern("SGLang", r"KV Cache is allocated\..*?KV size:\s*<n><GiB>", "kv_gib"),
    _pattern("SGLang", r"Mamba Cache is allocated.*?conv_state size:\s*<n><GiB>", "conv_gib"),
    _pattern("SGLang", r"Mamba Cache is allocated.*?ssm_state size:\s*<n><GiB>", "state_gib"),
    _pattern("SGLang", r"max_mamba_cache_size:\s*<n>", "state_slots"),
    _pattern("SGLang", r"Memory pool end\. avail mem=<n><GiB>", "after_pool_gib"),
    _pattern("SGLang", r"Capture cuda graph end\..*?mem usage=<n><GiB>", "graphs_gib"),
    _pattern("SGLang", r"Capture cuda graph end\..*?avail mem=<n><GiB>", "after_graphs_gib"),
    _pattern("SGLang", r"max_total_num_tokens=<n>", "max_total_tokens"),
    _pattern("SGLang", r"chunked_prefill_size=<n>", "chunk"),
    _pattern("SGLang", r"max_prefill_tokens=<n>", "max_prefill_tokens"),
    _pattern("SGLang", r"max_running_requests=<n>", "max_running"),
    _pattern("SGLang", r"context_len=<n>", "context_len"),
    _pattern("SGLang", r"available_gpu_mem=<n><GiB>", "available_gib"),
    _pattern("SGLang", r"(Not enough memory\. Please try to increase --mem-fraction-static)", "no_memory"),
    _pattern("SGLang", r"page_size=<n>", "page_size"),
)

_SGLANG_ONLY = (
    "max_total_num_tokens",
    "mem-fraction-static",
    "KV Cache is allocated",
    "mem_fraction_static",
    "Load weight",
    "Memory pool end",
)


@dataclass(frozen=True, slots=True)
class Found:
    """A figure of the log: its value, the line it stands in (from 1), and that line's text."""

    value: float | str
    line: int
    text: str


def read_lines(lines: Iterable[str]) -> tuple[Engine | None, Mapping[str, Found]]:
    """Which engine wrote the log, and its figures by name; the last line that tells a figure counts.

    Lines may be wrapped, prefixed and coloured; two lines are looked at together, for messages that were broken.
    """
    found: dict[Engine, dict[str, Found]] = {"vLLM": {}, "SGLang": {}}
    sglang = False
    before = ""
    for number, raw in enumerate(lines, 1):
        line = _PLAIN.sub("", raw).rstrip("\n")[:_LONGEST_LINE]
        sglang = sglang or any(mark in line for mark in _SGLANG_ONLY)
        for pattern in PATTERNS:
            _take(pattern, line, number, line, found[pattern.engine])
            if before and not pattern.regex.search(before):
                _take(pattern, f"{before} {line.lstrip()}", number, line, found[pattern.engine], crossing=len(before))
        before = line[-_OVERLAP:]
    engine: Engine = "SGLang" if sglang else "vLLM"
    return (engine, found[engine]) if found[engine] else (None, {})


_PLAIN = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LONGEST_LINE = 20_000
_OVERLAP = 400


def _take(
    pattern: Pattern, text: str, number: int, line: str, into: dict[str, Found], *, crossing: int | None = None
) -> None:
    match = pattern.regex.search(text)
    if match is None or (crossing is not None and not match.start() < crossing < match.end()):
        return
    for name, value in zip(pattern.names, match.groups(), strict=True):
        into[name] = Found(_number(value), number, line.strip()[:400])


def _number(text: str) -> float | str:
    try:
        return float(text.replace(",", "").replace("_", "").rstrip("."))
    except ValueError:
        return text
