"""Requests of every kind, as clients send them."""

from __future__ import annotations

import random
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

_KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "ignore_eos": True},
    "drawn": {"top_k": 30},
    "samples": {"n": 3, "stop_token_ids": list(range(0, 256, 9))},
    "stop strings": {"n": 2, "stop": ["q", "zz"]},
    "penalised": {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "ignore_eos": True},
    "rated": {"logprobs": 2, "ignore_eos": True},
    "echoed": {"logprobs": 1, "echo": True},
    "best of": {"best_of": 3, "n": 2},
    "beams": {"beam_width": 2, "n": 2},
    "structured": {"structured_outputs": {"regex": "([a-z]+ ){3,40}[0-9]"}},
    "batch": {"n": 2, "ignore_eos": True},
    "chat": {"n": 2, "logprobs": True, "top_logprobs": 2},
}


def requests(rng: random.Random, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Path and body; the same generator gives the same. Half of them stream."""
    made = []
    for number in range(count):
        kind = list(_KINDS)[number % len(_KINDS)]
        most = rng.randint(1, 60 if kind in ("best of", "beams") else 300)
        body: dict[str, Any] = {"max_tokens": most, "seed": number, **_KINDS[kind]}
        if rng.random() < 0.5:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if kind == "chat":
            body["messages"] = [{"role": "user", "content": "".join(rng.choices("abcdef \n", k=rng.randint(1, 60)))}]
            made.append((CHAT, body))
            continue
        prompts = [[rng.randrange(256) for _ in range(rng.randint(1, 60))] for _ in range(1 + 2 * (kind == "batch"))]
        body["prompt"] = prompts if kind == "batch" else prompts[0]
        made.append((COMPLETIONS, body))
    return made
