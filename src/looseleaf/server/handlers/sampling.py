"""A body's fields to sampling parameters: the front's whole ones, and what of them the engine needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.server.protocol.errors import ApiError
from looseleaf.server.protocol.sampling import GenerationBody

_SAME_NAME = (
    "best_of",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "length_penalty",
    "early_stopping",
)


def sampling_keywords(body: GenerationBody, **more: Any) -> dict[str, Any]:
    """Keywords of `SamplingParams`; `more` for what the endpoints call differently."""
    given: dict[str, Any] = {
        "n": body.n,
        "ignore_eos": body.ignore_eos,
        "include_stop_str_in_output": body.include_stop_str_in_output,
        "skip_special_tokens": body.skip_special_tokens,
    }
    given |= {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    if body.use_beam_search or body.beam_width is not None:
        # vLLM's `use_beam_search` takes the number of beams from `n`, OpenAI-like clients from `best_of`.
        given["beam_width"] = body.beam_width or given.pop("best_of", None) or body.n
    structured = structured_outputs(body)
    if structured is not None:
        given["structured"] = structured
    return given | {name: value for name, value in more.items() if value is not None}


def structured_outputs(body: GenerationBody) -> dict[str, Any] | None:
    asked = body.structured_outputs
    if asked is None:
        return None
    given = {kind: value for kind in _KINDS if (value := getattr(asked, kind)) is not None}
    if len(given) != 1:
        raise ApiError(
            400,
            f"structured_outputs has {len(given)} of json, regex, choice and grammar but must have one.",
            param="structured_outputs",
            code="invalid_value",
        )
    return given


_KINDS = ("json_schema", "regex", "choice", "grammar")


def engine_keywords(keywords: Mapping[str, Any], params: SamplingParams) -> dict[str, Any]:
    """The engine gives tokens alone, unless it must choose among whole outputs itself."""
    keywords = dict(keywords)
    if (schema := keywords.get("structured", {}).get("json_schema")) is not None:
        # As text: a schema may hold numbers that are too large for the wire.
        keywords["structured"] = {"json_schema": json.dumps(schema)}
    if params.beam_width is not None or params.num_samples > params.n:
        return keywords
    left_out = ("stop", "include_stop_str_in_output", "skip_special_tokens")
    return {name: value for name, value in keywords.items() if name not in left_out} | {"detokenize": False}
