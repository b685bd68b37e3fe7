"""Fields of both generating endpoints. Beyond OpenAI's, names and meanings are vLLM's."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from looseleaf.engine.sampling_params import MAX_SEED, MAX_STOP_LENGTH, MAX_STOP_STRINGS
from looseleaf.server.protocol.base import Body, Items, JsonObject, at_most

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_TOKEN_COUNT = 2**31 - 1
MAX_BIASES = 4096

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
Choices = Annotated[int, Field(ge=1, le=MAX_CHOICES)]
TokenCount = Annotated[int, Field(ge=1, le=MAX_TOKEN_COUNT)]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_COUNT)]


class StreamOptions(Body):
    include_usage: bool = False
    """A last chunk without choices says how many tokens there were."""


class StructuredOutputs(Body):
    """Exactly one: what the whole output must be."""

    json_schema: JsonObject | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[Items[str], Field(min_length=1)] | None = None
    grammar: str | None = None
    """In llguidance's dialect of Lark."""


class GenerationBody(Body):
    model: str | None = None
    """A served name, or the name of an adapter. None: the model that is served."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Choices = 1
    best_of: Choices | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=MAX_SEED)] | None = None
    stop: StopString | Annotated[Items[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[str, float], at_most(MAX_BIASES), Field(max_length=MAX_BIASES)] | None = None
    user: str | None = None
    """Whoever the caller's user is; it changes nothing here."""

    top_k: Annotated[int, Field(ge=-1, le=MAX_TOKEN_COUNT)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_TOKEN_COUNT)] | None = None
    ignore_eos: bool = False
    stop_token_ids: Annotated[Items[TokenId], Field(max_length=1024)] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: Annotated[int, Field(ge=-(2**31), le=MAX_TOKEN_COUNT)] = 0
    """Smaller is served first, where the server is set up for priorities."""
    use_beam_search: bool = False
    """With `beam_width` beams, or else `best_of` or `n`."""
    beam_width: Choices | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    early_stopping: bool | Literal["never"] | None = None
    structured_outputs: StructuredOutputs | None = None
