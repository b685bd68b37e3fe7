"""What a load test asks: prompts of random tokens, of a workload file, or with the lengths and times of a trace."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from looseleaf.engine.generation_request import GenerationRequest
from looseleaf.errors import InvalidRequest

DEFAULT_TOKEN_IDS = (1000, 20_000)
"""From, and up to but without: plain text tokens of every vocabulary in use."""
_TRACE_BLOCK = 512
"""Tokens that an id stands for where a trace does not say."""
_COMMON = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind
head house service friend father power hour game line end member law car city name team
"""
_WORDS = _COMMON.split()


class InvalidTrace(InvalidRequest, ValueError):
    """A trace cannot be read, or a line of it is not as the format says."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    prompt: NDArray[np.int64]
    output_tokens: int
    at: float | None = None
    """Seconds after the first, where the work has times of its own."""
    n: int = 1
    adapter: str | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Lengths:
    """From `low` to `high` tokens, each as likely."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> Lengths:
        """ "512" or "32-512". Raises `InvalidRequest`."""
        low, _, high = text.partition("-")
        try:
            lengths = cls(int(low), int(high or low))
        except ValueError:
            lengths = cls(0, 0)
        if not 1 <= lengths.low <= lengths.high:
            raise InvalidRequest(f"{text!r} is no length.", hint="Write for example 512, or 32-512.")
        return lengths

    def draw(self, random: np.random.Generator) -> int:
        return int(random.integers(self.low, self.high + 1))


class RandomTokens:
    """Prompts that nothing is cached of; or, where ids say what is alike, just that."""

    def __init__(self, seed: int, token_ids: tuple[int, int] = DEFAULT_TOKEN_IDS) -> None:
        self._seed = seed
        self._range = token_ids
        self._random = np.random.default_rng(seed)

    def fresh(self, length: int) -> NDArray[np.int64]:
        return self._random.integers(*self._range, size=length)

    def of_blocks(self, ids: Sequence[int], block_size: int, length: int) -> NDArray[np.int64]:
        """The same tokens for the same id; new ones beyond the ids."""
        blocks = [np.random.default_rng([self._seed, each]).integers(*self._range, size=block_size) for each in ids]
        known = np.concatenate([np.empty(0, np.int64), *blocks])[:length]
        return np.concatenate([known, self.fresh(length - len(known))])


def random_work(count: int, prompt: Lengths, output: Lengths, seed: int, tokens: RandomTokens) -> list[LoadRequest]:
    random = np.random.default_rng([seed, 1])
    return [LoadRequest(tokens.fresh(prompt.draw(random)), output.draw(random)) for _ in range(count)]


def workload_work(requests: Sequence[GenerationRequest]) -> list[LoadRequest]:
    """A draw of a workload file."""
    return [
        LoadRequest(
            np.asarray(each.prompt, np.int64),
            each.params.max_tokens or 1,
            n=each.params.n,
            adapter=each.adapter,
            temperature=each.params.temperature,
        )
        for each in requests
    ]


class _Line(msgspec.Struct):
    timestamp: float
    """Milliseconds."""
    input_length: int
    output_length: int
    hash_ids: list[int] = []
    hash_runs: list[tuple[int, int]] = []
    block_size: int = _TRACE_BLOCK


def trace_work(path: Path, tokens: RandomTokens, limit: int | None = None) -> list[LoadRequest]:
    """The first `limit` requests of a JSONL file, plain or .gz, in the order of their times. Raises `InvalidTrace`.

    A line has `timestamp` (milliseconds), `input_length` and `output_length`, and where prompts begin alike
    `hash_ids`, or `hash_runs` of [first id, count], each id for `block_size` tokens (512 unless it says so).
    """
    lines = sorted(_lines(path, limit), key=lambda line: line.timestamp)
    if not lines:
        raise InvalidTrace(f"The trace {path} has no requests.")
    return [
        LoadRequest(
            tokens.of_blocks(
                line.hash_ids or [first + i for first, count in line.hash_runs for i in range(count)],
                line.block_size,
                line.input_length,
            ),
            line.output_length,
            at=(line.timestamp - lines[0].timestamp) / 1000,
        )
        for line in lines
    ]


def _lines(path: Path, limit: int | None) -> Iterator[_Line]:
    """Those that ask for something and get something."""
    count = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    line = msgspec.json.decode(text, type=_Line)
                except msgspec.DecodeError as error:
                    raise InvalidTrace(
                        f"Line {number} of {path} is no request: {error}.",
                        hint='Write {"timestamp": milliseconds, "input_length": 100, "output_length": 20}.',
                    ) from error
                if line.block_size < 1 or line.input_length < 0 or line.output_length < 0:
                    raise InvalidTrace(f"Line {number} of {path} has a negative length.")
                if line.input_length and line.output_length:
                    yield line
                    count += 1
                if count == limit:
                    return
    except (OSError, EOFError) as error:
        raise InvalidTrace(f"The trace {path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def words(token_ids: NDArray[np.int64]) -> str:
    """As many common words: about a token each, for servers that take no token ids."""
    return " ".join(_WORDS[each % len(_WORDS)] for each in token_ids.tolist())
