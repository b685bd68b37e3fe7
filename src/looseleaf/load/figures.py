"""The figures of a load test. What vLLM's `bench serve` measures too has its name and unit there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from looseleaf.errors import InvalidRequest
from looseleaf.load.driver import LoadRun
from looseleaf.load.streamed_answer import StreamedAnswer

LATENCIES = {"ttft": "first token", "tpot": "per output token", "itl": "between chunks", "e2el": "whole answer"}
"""By vLLM's names. Each counts from when the request was due."""
PERCENTILES = (50, 90, 95, 99)
_UNITS = {"ms": 0.001, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Target:
    """Seconds that a request may take at most to be a good one; by "ttft", "tpot" and "e2el"."""

    limits: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> Target:
        """ "ttft=2s,itl=100ms". itl is the mean over a request, which is its tpot. Raises `InvalidRequest`."""
        limits = {}
        for entry in text.split(","):
            name, _, value = entry.strip().partition("=")
            name = {"itl": "tpot", "e2e": "e2el"}.get(name, name)
            unit = "ms" if value.endswith("ms") else value[-1:]
            try:
                seconds = float(value.removesuffix(unit)) * _UNITS[unit]
            except (ValueError, KeyError):
                seconds = 0.0
            if name not in ("ttft", "tpot", "e2el") or not seconds > 0:
                raise InvalidRequest(
                    f"{entry!r} is no latency target.", hint="Write ttft, itl (or tpot) or e2e: ttft=2s,itl=100ms."
                )
            limits[name] = seconds
        return cls(limits)

    def is_met(self, answer: StreamedAnswer) -> bool:
        return all(latency(answer, name) <= limit for name, limit in self.limits.items())


def latency(answer: StreamedAnswer, name: str) -> float:
    """Seconds, of an answer that is complete. For an answer of one token "tpot" is 0."""
    assert answer.first is not None
    if name == "ttft":
        return answer.first - answer.scheduled
    if name == "e2el":
        return answer.ended - answer.scheduled
    more = output_tokens(answer) / max(answer.finished, 1) - 1
    return (answer.ended - answer.first) / more if more > 0 else 0.0


def output_tokens(answer: StreamedAnswer) -> int:
    """As the server says; if it does not, its chunks."""
    return answer.chunks if answer.output_tokens is None else answer.output_tokens


def summary(run: LoadRun, target: Target | None = None) -> dict[str, Any]:
    """Numbers only; latencies in milliseconds. Those that failed count as such and nowhere else."""
    good = [answer for answer in run.answers if answer.failure is None]
    prompts = sum(answer.prompt_tokens or 0 for answer in good)
    outputs = sum(output_tokens(answer) for answer in good)
    seconds = max(run.duration, 1e-9)
    figures: dict[str, Any] = {
        "duration": run.duration,
        "completed": len(good),
        "failed": len(run.answers) - len(good),
        "failures": dict(Counter(a.failure for a in run.answers if a.failure is not None).most_common()),
        "total_input_tokens": prompts,
        "total_cached_input_tokens": sum(answer.cached_tokens for answer in good),
        "total_output_tokens": outputs,
        "request_throughput": len(good) / seconds,
        "output_throughput": outputs / seconds,
        "total_token_throughput": (prompts + outputs) / seconds,
        "max_concurrent_requests": most_at_once(run.answers),
        "client_cpu_share": run.cpu_seconds / seconds,
    }
    if target is not None:
        met = sum(map(target.is_met, good))
        figures |= {"request_goodput": met / seconds, "good_share": met / len(run.answers) if run.answers else 0.0}
    for name in LATENCIES:
        figures |= _spread(name, latencies(good, name))
    return figures | _spread("lateness", [answer.sent - answer.scheduled for answer in run.answers])


def latencies(good: Iterable[StreamedAnswer], name: str) -> list[float]:
    """Seconds, of answers that are complete: "itl" one for each gap, the others one for each answer that has it."""
    if name == "itl":
        return [gap for answer in good for gap in answer.gaps]
    found = (latency(answer, name) for answer in good)
    return [each for each in found if each > 0 or name != "tpot"]


def details(run: LoadRun) -> dict[str, Any]:
    """One entry per request; seconds. `start_times`: when requests were due, from the start of the test."""
    answers = run.answers
    return {
        "input_lens": [answer.prompt_tokens or 0 for answer in answers],
        "output_lens": [output_tokens(answer) for answer in answers],
        "cached_input_lens": [answer.cached_tokens for answer in answers],
        "ttfts": [0.0 if answer.first is None else answer.first - answer.scheduled for answer in answers],
        "itls": [answer.gaps for answer in answers],
        "e2els": [answer.ended - answer.scheduled for answer in answers],
        "start_times": [answer.scheduled - run.started for answer in answers],
        "lateness": [answer.sent - answer.scheduled for answer in answers],
        "errors": [answer.failure or "" for answer in answers],
    }


def most_at_once(answers: Sequence[StreamedAnswer]) -> int:
    changes = sorted([(a.sent, 1) for a in answers] + [(a.ended, -1) for a in answers])
    return int(np.cumsum([change for _, change in changes]).max()) if changes else 0


def _spread(name: str, seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    values = np.asarray(seconds) * 1000
    figures = {"mean": values.mean(), "median": np.median(values), "std": values.std()}
    figures |= {f"p{each}": np.percentile(values, each) for each in PERCENTILES if each != 50}
    figures["max"] = values.max()
    return {f"{key}_{name}_ms": float(value) for key, value in figures.items()}
