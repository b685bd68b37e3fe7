"""`/v1/chat/completions`, asked by the official client."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from server.served import MODEL, Served

HELLO = [{"role": "user", "content": "hello"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Bonn"]}, "celsius": {"type": "boolean"}},
            "required": ["city", "celsius"],
            "additionalProperties": False,
        },
    },
}


def ask(server: Served, **keywords: Any) -> Any:
    asked = {"model": MODEL, "messages": HELLO, "max_completion_tokens": 12, "seed": 2} | keywords
    return server.openai().chat.completions.create(**asked)


def test_a_chat_is_the_completion_of_its_prompt(server: Served) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "go"},
    ]
    prompt = "system: Be brief.\nuser: one\ntwo\nassistant: ok\nuser: go\nassistant:"
    answer = ask(server, messages=messages)
    completion = server.openai().completions.create(model=MODEL, prompt=prompt, max_tokens=12, seed=2)
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == completion.choices[0].text
    assert choice.finish_reason == completion.choices[0].finish_reason
    assert answer.usage.prompt_tokens == completion.usage.prompt_tokens == len(prompt.encode())


@pytest.mark.parametrize("extra", [{}, {"logprobs": True, "top_logprobs": 2}])
def test_a_stream_adds_up_to_the_whole(server: Served, extra: dict[str, Any]) -> None:
    whole = ask(server, n=3, max_tokens=12, **extra)
    chunks = list(ask(server, n=3, stream=True, stream_options={"include_usage": True}, **extra))
    texts, rated = [""] * 3, [[] for _ in range(3)]
    for chunk in chunks[:-1]:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.logprobs:
                rated[choice.index] += choice.logprobs.content
    assert texts == [choice.message.content for choice in whole.choices]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    for choice, tokens in zip(whole.choices, rated, strict=True):
        assert (choice.logprobs.content if choice.logprobs else []) == tokens
        for token in tokens:
            assert len(token.top_logprobs) == 2
            assert bytes(token.bytes).decode("utf-8", "replace") == token.token or token.token.startswith("bytes:")


def test_without_a_limit_an_answer_takes_what_fits(server: Served) -> None:
    answer = server.openai().chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "x" * 1980}],
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage.total_tokens == server.client.info.max_model_len


def test_a_json_schema_is_kept(server: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"yes": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
        "required": ["yes", "kind"],
        "additionalProperties": False,
    }
    for seed in range(3):
        answer = ask(
            server,
            seed=seed,
            max_completion_tokens=80,
            response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}},
        )
        jsonschema.validate(json.loads(answer.choices[0].message.content), schema)
        assert answer.choices[0].finish_reason == "stop"


def test_other_structure_is_kept(server: Served) -> None:
    chosen = ask(server, extra_body={"structured_outputs": {"choice": ["red", "green"]}})
    assert chosen.choices[0].message.content in ("red", "green")
    matched = ask(server, extra_body={"structured_outputs": {"regex": "[0-9]{3}-x"}})
    assert matched.choices[0].message.content[3:] == "-x"
    begun = ask(server, response_format={"type": "json_object"})
    assert begun.choices[0].message.content.startswith("{")


def test_a_required_tool_is_called_by_its_schema(server: Served) -> None:
    for stream in (False, True):
        answer = ask(
            server,
            tools=[WEATHER],
            tool_choice="required",
            parallel_tool_calls=False,
            max_completion_tokens=120,
            stream=stream,
        )
        if stream:
            chunks = list(answer)
            [call] = [call for c in chunks for call in c.choices[0].delta.tool_calls or []]
            assert chunks[-1].choices[0].finish_reason == "tool_calls"
            assert not any(c.choices[0].delta.content for c in chunks)
        else:
            [call] = answer.choices[0].message.tool_calls
            assert answer.choices[0].finish_reason == "tool_calls"
            assert answer.choices[0].message.content is None
        assert call.function.name == "weather"
        jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])


def test_a_named_tool_gets_its_arguments(server: Served) -> None:
    answer = ask(
        server,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_completion_tokens=120,
    )
    [call] = answer.choices[0].message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])
    assert answer.choices[0].finish_reason == "stop"


def test_tools_are_described_and_earlier_calls_are_shown(server: Served) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    with server.http() as http:
        body = {"model": MODEL, "messages": messages, "tools": [WEATHER]}
        tokens = http.post("/tokenize", json=body).json()["tokens"]
        text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text.startswith("system: # Tools")
    assert '"name": "weather"' in text.rsplit("</tools>", 1)[0]
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>' in text
    assert "user: <tool_response>\nrain\n</tool_response>" in text


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant"}]}, "messages"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens"),
        ({"store": True}, "store"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"functions": []}, "functions"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0].function.strict"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 3}}}},
            "response_format",
        ),
        ({"tools": [WEATHER], "response_format": {"type": "json_object"}}, "response_format"),
        ({"chat_template_kwargs": {"messages": "x"}}, None),
        ({"messages": [{"role": "user", "content": "x", "weight": 1}]}, "messages[0].weight"),
    ],
)
def test_what_is_wrong_is_refused_by_name(server: Served, change: dict[str, Any], param: str | None) -> None:
    with server.http() as http:
        answer = http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO} | change)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
