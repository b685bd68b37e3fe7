"""Benchmark work from a JSON file: tests by name, each drawn several times independently.

    {"warmup": [REQUEST, …], "T1": [DRAW, DRAW, …], "T3": …, "meta": anything}

A REQUEST is `{"prompt": [token ids], "n_out": 16, "n": 1, "temperature": 0, "adapter": "sql"}`, the last three
optional: it gets exactly `n_out` tokens, as end-of-sequence is ignored. A DRAW is one request, a list of requests that
arrive together, or `{"prefix": [ids], "suffixes": [[ids], …], "n_out": 32}`: requests with a common beginning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looseleaf.engine.generation_request import GenerationRequest
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.errors import InvalidRequest, LooseleafError

_NOT_TESTS = ("meta", "warmup")


class InvalidWorkload(InvalidRequest, ValueError):
    """A workload file cannot be read, or something in it is not as the format says."""


@dataclass(frozen=True, slots=True)
class Workload:
    warmup: list[GenerationRequest]
    tests: dict[str, list[list[GenerationRequest]]]
    """By name, the draws of each test: requests that arrive together."""

    def draws(self, test: str) -> list[list[GenerationRequest]]:
        """Raises `InvalidWorkload` for a test that the file does not have."""
        if test not in self.tests:
            raise InvalidWorkload(f"The workload has no test {test!r}.", hint=f"It has {', '.join(self.tests)}.")
        return self.tests[test]


def load_workload(path: Path) -> Workload:
    """Read and check a workload file. Raises `InvalidWorkload`, which names the place that is wrong."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidWorkload(f"The workload {path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InvalidWorkload(f"The workload {path} is no JSON: {error}.") from error
    if not isinstance(content, dict):
        raise InvalidWorkload(f"The workload {path} is no JSON object.", hint="Its keys are the names of tests.")
    tests = {
        name: [_draw(draw, f"{name}[{i}]") for i, draw in enumerate(_filled_list(draws, name))]
        for name, draws in content.items()
        if name not in _NOT_TESTS
    }
    if not tests:
        raise InvalidWorkload(f"The workload {path} has no tests.")
    warmup = content.get("warmup", [])
    return Workload(_requests(warmup, "warmup") if warmup else [], tests)


def _draw(draw: Any, where: str) -> list[GenerationRequest]:
    if isinstance(draw, list):
        return _requests(draw, where)
    if isinstance(draw, Mapping) and "suffixes" in draw:
        rest = {key: value for key, value in draw.items() if key not in ("prefix", "suffixes")}
        prefix = _token_ids(draw.get("prefix"), f"{where}.prefix")
        return [
            _request({"prompt": prefix + _token_ids(suffix, f"{where}.suffixes[{i}]")} | rest, where)
            for i, suffix in enumerate(_filled_list(draw["suffixes"], f"{where}.suffixes"))
        ]
    return [_request(draw, where)]


def _requests(requests: Any, where: str) -> list[GenerationRequest]:
    return [_request(each, f"{where}[{i}]") for i, each in enumerate(_filled_list(requests, where))]


def _request(request: Any, where: str) -> GenerationRequest:
    if not isinstance(request, Mapping):
        raise InvalidWorkload(f"{where} is a {type(request).__name__}, not a request.", hint=_EXAMPLE)
    unknown = request.keys() - {"prompt", "n_out", "n", "temperature", "adapter"}
    if unknown or not {"prompt", "n_out"} <= request.keys():
        raise InvalidWorkload(f"{where} has the keys {', '.join(map(str, request)) or 'none'}.", hint=_EXAMPLE)
    if request["n_out"] is None:
        raise InvalidWorkload(f"{where}.n_out is null.", hint=_EXAMPLE)
    adapter = request.get("adapter")
    if adapter is not None and not isinstance(adapter, str):
        raise InvalidWorkload(f"{where}.adapter is {adapter!r:.80}, not a name.", hint=_EXAMPLE)
    try:
        params = SamplingParams(
            max_tokens=request["n_out"],
            n=request.get("n", 1),
            temperature=request.get("temperature", 0),
            ignore_eos=True,
        )
    except LooseleafError as error:
        raise InvalidWorkload(f"{where}: {error.message}", hint=error.hint) from error
    return GenerationRequest(_token_ids(request["prompt"], f"{where}.prompt"), params, adapter)


def _token_ids(value: Any, where: str) -> list[int]:
    for position, token in enumerate(_filled_list(value, where)):
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise InvalidWorkload(f"{where}[{position}] is {token!r}, not a token id.")
    return list(value)


def _filled_list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise InvalidWorkload(f"{where} is {'an empty' if value == [] else 'not a'} list.", hint=_EXAMPLE)
    return value


_EXAMPLE = 'A request is {"prompt": [token ids], "n_out": 16}, with "n", "temperature" and "adapter" if wanted.'
