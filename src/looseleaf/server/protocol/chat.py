"""`/v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from looseleaf.server.protocol.base import Answer, Body, Items, JsonObject, at_most
from looseleaf.server.protocol.sampling import MAX_LOGPROBS, GenerationBody, TokenCount
from looseleaf.server.protocol.usage import FinishReason, Usage

MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_VARIABLES = 64

TemplateVariables = Annotated[
    dict[str, str | int | float | bool | None], at_most(MAX_VARIABLES), Field(max_length=MAX_VARIABLES)
]
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class TextPart(Body):
    type: Literal["text"]
    text: str


Content = str | Annotated[Items[TextPart], Field(min_length=1, max_length=MAX_MESSAGES)]


class FunctionCall(Body):
    name: FunctionName
    arguments: str
    """A JSON object, as text."""


class ToolCall(Body):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class SystemMessage(Body):
    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Body):
    role: Literal["user"]
    content: Content
    name: str | None = None


class AssistantMessage(Body):
    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[Items[ToolCall], Field(max_length=MAX_TOOLS)] | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None


class ToolMessage(Body):
    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str | None = None


ChatMessage = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class FunctionDefinition(Body):
    name: FunctionName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    """True: with `tool_choice` "required" or a name, where calls are held to their schemas."""


class Tool(Body):
    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(Body):
    name: FunctionName


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class JsonSchemaFormat(Body):
    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str | None = None
    schema_: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None
    """The output always keeps to the schema, strict or not."""


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class SchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchemaFormat


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")]


class ChatBody(GenerationBody):
    messages: Annotated[Items[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: TokenCount | None = None
    max_tokens: TokenCount | None = None
    """The older name of `max_completion_tokens`. Neither: as many as fit."""
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[Items[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: TemplateVariables | None = None
    """More variables for the model's chat template, such as `enable_thinking`."""

    # OpenAI's, and not here: null says the same as leaving them out.
    audio: None = None
    function_call: None = None
    functions: None = None
    metadata: None = None
    modalities: None = None
    prediction: None = None
    prompt_cache_key: None = None
    reasoning_effort: None = None
    safety_identifier: None = None
    service_tier: None = None
    store: Literal[False] | None = None
    verbosity: None = None
    web_search_options: None = None


class TopLogprob(Answer):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    content: list[TokenLogprob] | None
    refusal: None


class CalledFunction(Answer):
    name: str
    arguments: str


class AnsweredToolCall(Answer):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(Answer):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[AnsweredToolCall] | None = None


class ChatChoice(Answer):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None


class ChatCompletion(Answer):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatChunkChoice(Answer):
    index: int
    delta: dict[str, Any]
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(Answer):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
