"""A Looseleaf server and the official client: chat, streams, samples, tools, JSON by a schema, log-probabilities.

    pip install openai
    looseleaf serve &
    python examples/openai_client.py [http://127.0.0.1:8000/v1]

A key, where the server wants one, comes from OPENAI_API_KEY.
"""

from __future__ import annotations

import json
import math
import os
import sys

from openai import OpenAI

client = OpenAI(
    base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1",
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
model = client.models.list().data[0].id


def title(text: str) -> None:
    print(f"\n== {text}")


title("Chat")
system = "You are a helpful assistant. Answer in one short sentence."
answer = client.chat.completions.create(
    model=model,
    messages=[{"role": "system", "content": system}, {"role": "user", "content": "What is the capital of France?"}],
    temperature=0,
    max_completion_tokens=40,
)
print(answer.choices[0].message.content)

title("Streamed, with the usage at the end")
stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "system", "content": system}, {"role": "user", "content": "What is the capital of Italy?"}],
    temperature=0,
    max_completion_tokens=40,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
        cached = chunk.usage.prompt_tokens_details.cached_tokens
        print(f"\n{cached} of {chunk.usage.prompt_tokens} prompt tokens came from the prefix cache.")

title("Four samples of one prompt, which they share")
samples = client.completions.create(
    model=model, prompt="The best thing about the sea is", n=4, seed=1, temperature=0.8, max_tokens=12
)
for each in samples.choices:
    print(f"{each.index}: {each.text!r}")

title("A tool that must be called")
called = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "What is the weather in Paris today?"}],
    tools=[
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "The weather in a city",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string", "maxLength": 30},
                        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                    },
                    "required": ["city", "unit"],
                    "additionalProperties": False,
                },
            },
        }
    ],
    tool_choice={"type": "function", "function": {"name": "get_weather"}},
    temperature=0,
    max_completion_tokens=400,
)
for call in called.choices[0].message.tool_calls or []:
    if call.type == "function":
        print(f"{call.function.name}({json.loads(call.function.arguments)})")

title("JSON by a schema")
structured = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Describe Paris as JSON with its name, country and a list of two sights."}],
    response_format={
        "type": "json_schema",
        "json_schema": {
            "name": "city",
            "schema": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 30},
                    "country": {"type": "string", "maxLength": 30},
                    "sights": {
                        "type": "array",
                        "items": {"type": "string", "maxLength": 30},
                        "minItems": 2,
                        "maxItems": 2,
                    },
                },
                "required": ["name", "country", "sights"],
                "additionalProperties": False,
            },
        },
    },
    temperature=0,
    max_completion_tokens=1000,
)
print(json.loads(structured.choices[0].message.content or ""))

title("How likely each token was")
likely = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "What is the capital of France? Answer with one word."}],
    temperature=0,
    max_completion_tokens=3,
    logprobs=True,
    top_logprobs=3,
)
if likely.choices[0].logprobs is not None:
    for token in likely.choices[0].logprobs.content or []:
        others = ", ".join(f"{each.token!r} {math.exp(each.logprob):.1%}" for each in token.top_logprobs)
        print(f"{token.token!r}: {others}")
