"""Prompts equal transformers', hostile templates end, and bad messages are named."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from looseleaf.models.chat_sandbox import RenderLimits
from looseleaf.models.chat_template import (
    ChatTemplate,
    ChatTemplateError,
    ChatTemplates,
    InvalidMessages,
    MessagesRefused,
    NoChatTemplate,
)
from looseleaf.models.tokenizer import Tokenizer

LLAMA3 = """\
{{- bos_token }}
{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- if not date_string is defined %}{% set date_string = "26 Jul 2024" %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is defined and tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("Only single tool-calls!") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

QWEN3 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or reasoning_content) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}{{- tool_call.arguments }}
            {%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages if not (message.role == "tool" or message.tool_calls is defined) %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {%- generation %}{{- " " + message["content"]|trim + eos_token}}{% endgeneration %}
    {%- endif %}
{%- endfor %}
"""

MACROS = """\
{%- macro part(item, depth=0) -%}
  {%- if item is string -%}{{ item }}{%- else -%}
    {%- for child in item -%}{%- if child.type == 'text' -%}{{ part(child.text, depth + 1) }}{%- else -%}<{{ child.type }}>{%- endif -%}{%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{% set parts = [] %}
{% for m in messages %}
{% if m.role == 'skip' %}{% continue %}{% endif %}
  {{ loop.index }}/{{ loop.length }}: {{ m.role|title }} ~ {{ '%s' % m.role }}{{ "-" * 3 }}
    {%- filter upper %} {{ part(m.content) }} {% endfilter %}
{% if m.role == 'stop' %}{% break %}{% endif %}
{% endfor %}
{{ dict(a=1)['a'] }}{{ range(3)|join(',') }}{{ messages|map(attribute='role')|join(' | ') }}{{ [1, 2] + [3] }}{{ (1, 'x') }}
"""  # noqa: E501

TEMPLATES = {"llama3": LLAMA3, "qwen3": QWEN3, "mistral": MISTRAL, "macros": MACROS}
SPECIAL: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks <b>it</b> up & 'back' – ü",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    },
}
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"q": "α < β", "n": 3, "f": 0.5}}}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "Hello"}],
    "system": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi 🦙\n"}],
    "turns": [
        {"role": "user", "content": "a <b> & 'c'"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes", "name": None},
        {"role": "user", "content": "{{ 7 * 7 }} {% raise %}"},
    ],
    "reasoning": [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning": "because"},
    ],
    "tools": [
        {"role": "user", "content": "look it up"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "found"},
    ],
}


def theirs(source: str, messages: list[dict[str, Any]], **variables: Any) -> str:
    # transformers drops empty fields one level further out than this function.
    filled = [{key: value for key, value in message.items() if value is not None} for message in messages]
    rendered: Any = render_jinja_template([filled], chat_template=source, **(SPECIAL | variables))
    return str(rendered[0][0])


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("tools", [None, [TOOL], [TOOL, TOOL]])
def test_prompts_equal_transformers(name: str, conversation: str, prompt: bool, tools: list[Any] | None) -> None:
    messages = CONVERSATIONS[conversation]
    source = TEMPLATES[name]
    variables: dict[str, Any] = {"tools": tools, "add_generation_prompt": prompt, "enable_thinking": False}
    try:
        expected = theirs(source, messages, **variables)
    except Exception:  # the template does not take this conversation: then we must not either
        with pytest.raises((ChatTemplateError, MessagesRefused)):
            ChatTemplate(source, SPECIAL).render(messages, **variables)
    else:
        assert ChatTemplate(source, SPECIAL).render(messages, **variables) == expected


@pytest.mark.parametrize("name", TEMPLATES)
@given(contents=st.lists(st.text(max_size=30), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_any_content_equals_transformers(name: str, contents: list[str]) -> None:
    messages = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    expected = theirs(TEMPLATES[name], messages, tools=None, add_generation_prompt=True)
    assert ChatTemplate(TEMPLATES[name], SPECIAL).render(messages) == expected


def test_the_default_model_equals_transformers(smollm2_gguf: Path) -> None:
    tokenizer = Tokenizer.from_gguf(smollm2_gguf)
    source = tokenizer.chat_templates["default"].source
    for messages in CONVERSATIONS.values():
        if all(message["content"] is not None for message in messages):
            assert tokenizer.apply_chat_template(messages) == theirs(source, messages, add_generation_prompt=True)


USER = [{"role": "user", "content": "x" * 1000}]
RUNAWAY = {
    "loops without output": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops with output": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "loops without calls": "{% set c = messages[0].content %}" + "{% for x in c %}" * 4 + "{% endfor %}" * 4,
    "filtered loops": "{% for a in range(99999) if range(99999)|list|length < 0 %}{% endfor %}",
    "long range": "{% for a in range(10 ** 9) %}{% endfor %}",
    "macro recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "endless macro": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "doubled by ~": "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubled by +": "{% set n = namespace(s='xx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "nested lists": "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}",
    "nested dicts": "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = {0: n.s, 1: n.s} %}{% endfor %}",
    "repeated text": "{{ 'xxxxxxxxxx' * 10 ** 9 }}",
    "repeated list": "{{ ([0] * 10 ** 9)|length }}",
    "constant": "{{ 'x'|center(10 ** 9) }}{{ 'x'|center(1000000000) }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "squares": "{% set n = namespace(s=3) %}{% for i in range(60) %}{% set n.s = n.s * n.s %}{% endfor %}",
    "justify": "{{ 'x'.ljust(10 ** 9) }}",
    "fill": "{{ 'x'.zfill(1000000000) }}",
    "tabs": "{{ ('\t' * 99999).expandtabs(99999) }}",
    "format": "{{ '%1000000000d' % 1 }}",
    "format width": "{{ '%*d' % (1000000000, 1) }}",
    "format method": "{{ '{:1000000000}'.format(1) }}",
    "format argument": "{{ '{:{}}'.format(1, 1000000000) }}",
    "format filter": "{{ '%1000000000d'|format(1) }}",
    "replace": "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
    "replace number": "{{ (10 ** 99)|replace('0', 'y' * 99999)|replace('y', 'z' * 9999) }}",
    "replace filter": "{{ ('x' * 99999)|replace('x', 'y' * 99999) }}",
    "join": "{{ (['x'] * 99999)|join('y' * 99999) }}",
    "join method": "{{ ('y' * 99999).join(['x'] * 99999) }}",
    "join mapped": "{{ (['x' * 99999] * 99999)|map('upper')|join }}",
    "indent": "{{ ('x\n' * 99999)|indent(99999) }}",
    "round": "{{ 2.5|round(1000000000, 'ceil') }}",
    "batch": "{{ [1]|batch(1000000000, 0)|list }}",
    "json": "{{ [[[1]]]|tojson(indent=1000000000) }}",
    "captured": "{% set s %}{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}{% endset %}",
    "captured text": "{% set s %}{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endset %}",
    "lorem": "{{ lipsum(n=100000) }}",
}


@pytest.mark.parametrize("name", RUNAWAY)
def test_runaway_templates_are_stopped_before_they_take_much(name: str) -> None:
    limits = RenderLimits(chars=2**18, steps=10_000, seconds=20)
    tracemalloc.start()
    try:
        with pytest.raises(ChatTemplateError):
            ChatTemplate(RUNAWAY[name], limits=limits).render(USER)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * 2**20


def test_time_is_bounded_too() -> None:
    template = ChatTemplate(RUNAWAY["loops without output"], limits=RenderLimits(steps=10**12, seconds=0.2))
    with pytest.raises(ChatTemplateError, match=r"longer than 0\.2 s"):
        template.render(USER)


def test_large_numbers_and_format_like_content_are_no_offence() -> None:
    source = (
        "{{ '%s at %d' % (messages[0].content, 1735689600) }}{{ '{} {}'.format(1735689600, messages[0].content) }}"
        "{{ 1735689600|string|length }}{{ 1735689600.25|round(1) }}{{ 1735689600|int + 10 ** 12 }}"
        "{{ '%s' | format(messages[0].content) }}{{ messages[0].content.replace('1', '11') }}"
        "{{ tools|tojson(indent=2) }}"
    )
    messages = [{"role": "user", "content": "ratio %1234567d, id: 123456789 {:9999999} %*d {{}}"}]
    variables: dict[str, Any] = {"tools": [{"n": 2**70}], "add_generation_prompt": True}
    assert ChatTemplate(source).render(messages, **variables) == theirs(source, messages, **variables)


def test_a_long_conversation_is_within_the_limits() -> None:
    messages = [{"role": ("user", "assistant")[i % 2], "content": "long\n" * 2000} for i in range(401)]
    for source in TEMPLATES.values():
        rendered = ChatTemplate(source, SPECIAL).render(messages)
        assert rendered.upper().count("LONG\n") >= 401 * 1999


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__'] }}{{ messages.__class__ }}{{ (''|attr('__class__')).x }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{% set n = namespace(__class__=1) %}",
        "{% set n = namespace() %}{% set n.__class__ = 1 %}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
        "{{ tool.run() }}",
    ],
)
def test_templates_cannot_reach_out(source: str) -> None:
    class Tool:
        ran = False

        def run(self) -> None:
            Tool.ran = True

    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source + "{{ 1 // 0 if false }}{{ undefined_name.x }}").render(messages, tool=Tool())
    assert not Tool.ran
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'x }}", "{% nonsense %}", "{{ 1|nonsense }}", "x" * 2**19])
def test_a_template_that_is_none_is_refused(source: str) -> None:
    with pytest.raises(ChatTemplateError, match="chat template"):
        ChatTemplate(source)


def test_a_template_refuses_messages_in_its_own_words() -> None:
    with pytest.raises(MessagesRefused, match="roles must alternate"):
        ChatTemplate(MISTRAL, SPECIAL).render([{"role": "assistant", "content": "first"}])


def test_a_model_without_template_says_so() -> None:
    with pytest.raises(NoChatTemplate, match="no chat template"):
        ChatTemplates({}, {}).choose(with_tools=False)


@pytest.mark.parametrize(
    ("messages", "index", "says"),
    [
        ([], None, "no chat messages"),
        ("hello", None, "not a str"),
        ({"role": "user", "content": "x"}, None, "not a dict"),
        ([{"role": "user", "content": "x"}, "hello"], 1, "Message 1 is a str"),
        ([{"content": "x"}], 0, "Message 0 has no role"),
        ([{"role": "", "content": "x"}], 0, "Message 0 has no role"),
        ([{"role": 3, "content": "x"}], 0, "Message 0 has no role"),
        ([{"role": "user", "content": "x"}, {"role": "user"}], 1, r"Message 1 \(user\) has no content"),
        ([{"role": "user", "content": None}], 0, "has no content"),
        ([{"role": "user", "content": 3}], 0, "has a int as content"),
    ],
)
def test_misshapen_messages_are_named(messages: Any, index: int | None, says: str) -> None:
    with pytest.raises(InvalidMessages, match=says) as caught:
        ChatTemplate("{{ messages }}").render(messages)
    assert caught.value.index == index
