"""`/v1/completions`, asked by the official client."""

from __future__ import annotations

import openai
import pytest

from looseleaf.engine.sampling_params import SamplingParams
from server.served import MODEL, Served
from tiny_model import tiny_engine, tiny_model


def directly(prompt: str, **keywords: object) -> list[str]:
    """The same from an engine of its own, without any server."""
    engine = tiny_engine(tiny_model(), num_blocks=512, max_model_len=512, max_num_seqs=16)
    engine.add_request(prompt, SamplingParams.parse(keywords))
    while engine.has_unfinished():
        for delta in engine.step():
            if delta.request_output is not None:
                return [output.text for output in delta.request_output.outputs]
    raise AssertionError


def test_the_text_is_the_engines(server: Served) -> None:
    answer = server.openai().completions.create(model=MODEL, prompt="hello", max_tokens=20, temperature=0)
    [choice] = answer.choices
    assert choice.text == directly("hello", max_tokens=20, temperature=0)[0]
    assert choice.finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 20, 25)


@pytest.mark.parametrize(
    "keywords",
    [
        {"seed": 3},
        {"seed": 3, "n": 3},
        {"seed": 3, "top_p": 0.5, "presence_penalty": 1.0, "frequency_penalty": -0.5},
        {"seed": 3, "logit_bias": {"101": 100}},
        {"seed": 3, "extra_body": {"top_k": 5, "min_p": 0.01, "repetition_penalty": 1.2}},
        {"seed": 3, "extra_body": {"ignore_eos": True, "min_tokens": 4, "stop_token_ids": [100, 120]}},
        {"seed": 3, "n": 2, "best_of": 4},
        {"n": 2, "extra_body": {"use_beam_search": True, "beam_width": 4, "length_penalty": 0.5}},
        {"n": 3, "extra_body": {"use_beam_search": True, "early_stopping": True}},
    ],
)
def test_parameters_mean_what_they_mean_to_the_engine(server: Served, keywords: dict[str, object]) -> None:
    answer = server.openai().completions.create(model=MODEL, prompt="hello", max_tokens=24, **keywords)
    extra = dict(keywords.pop("extra_body", {}))
    if extra.pop("use_beam_search", False):
        extra.setdefault("beam_width", keywords["n"])
    assert [choice.text for choice in answer.choices] == directly("hello", max_tokens=24, **keywords, **extra)


@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_adds_up_to_the_whole(server: Served, n: int) -> None:
    asked = {"model": MODEL, "prompt": ["hello", "another"], "max_tokens": 30, "seed": 1, "n": n, "temperature": 1.3}
    whole = server.openai().completions.create(**asked)
    chunks = list(server.openai().completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    texts = [""] * (2 * n)
    ends: dict[int, str] = {}
    for chunk in chunks[:-1]:
        [choice] = chunk.choices
        texts[choice.index] += choice.text
        assert choice.index not in ends
        if choice.finish_reason:
            ends[choice.index] = choice.finish_reason
        assert chunk.usage is None
    assert texts == [choice.text for choice in whole.choices]
    assert [ends[i] for i in range(2 * n)] == [choice.finish_reason for choice in whole.choices]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_without_stream_options_no_chunk_speaks_of_usage(server: Served) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 2, "stream": True}
    with server.http() as http:
        text = http.post("/v1/completions", json=body).text
    assert "usage" not in text
    assert text.endswith("data: [DONE]\n\n")


def test_stop_strings_are_found_in_the_front_and_end_the_sample_alone(server: Served) -> None:
    keywords = {"max_tokens": 60, "seed": 5, "n": 3, "temperature": 1.0}
    free = directly("hello", **keywords)
    stop = next(free[1][i : i + 2] for i in range(5, len(free[1])) if "\ufffd" not in free[1][i : i + 2])
    answer = server.openai().completions.create(model=MODEL, prompt="hello", stop=[stop], **keywords)
    assert [choice.text for choice in answer.choices] == [text.split(stop)[0] for text in free]
    assert answer.choices[1].finish_reason == "stop"
    assert answer.choices[1].stop_reason == stop
    request = server.client.requests[-1]
    assert "stop" not in request.params
    assert request.params["detokenize"] is False
    assert (request.request_id, 1) in server.client.ended_samples or all(stop in text for text in free)
    assert answer.usage.completion_tokens < 3 * 60
    shown = server.openai().completions.create(
        model=MODEL, prompt="hello", stop=stop, extra_body={"include_stop_str_in_output": True}, **keywords
    )
    assert shown.choices[1].text == free[1].split(stop)[0] + stop
    assert server.client.in_flight() == 0


def test_stop_with_best_of_is_the_engines(server: Served) -> None:
    keywords = {"max_tokens": 40, "seed": 5, "best_of": 4, "n": 2, "stop": ["e", "4"]}
    answer = server.openai().completions.create(model=MODEL, prompt="hello", **keywords)
    assert [choice.text for choice in answer.choices] == directly("hello", **keywords)


def test_prompts_are_text_or_tokens_one_or_many(server: Served) -> None:
    client = server.openai()
    asked = {"model": MODEL, "max_tokens": 6, "temperature": 0}
    tokens = {text: server.engine.tokenizer.encode(text) for text in ("ab", "cde")}
    of_text = client.completions.create(prompt=["ab", "cde"], **asked)
    of_tokens = client.completions.create(prompt=list(tokens.values()), **asked)
    alone = [client.completions.create(prompt=given, **asked).choices[0].text for given in tokens.values()]
    assert [c.text for c in of_text.choices] == [c.text for c in of_tokens.choices] == alone
    assert of_text.usage.prompt_tokens == 5


def test_logprobs_and_echo(server: Served) -> None:
    asked = {"model": MODEL, "prompt": "hello", "max_tokens": 6, "temperature": 0, "logprobs": 3}
    answer = server.openai().completions.create(**asked, echo=True)
    [choice] = answer.choices
    rated = choice.logprobs
    assert choice.text.startswith("hello")
    assert rated.tokens[:5] == list("hello")
    assert rated.token_logprobs[0] is None
    assert rated.text_offset[:6] == [0, 1, 2, 3, 4, 5]
    assert all(len(rated.tokens) == len(column) == 11 for column in (rated.token_logprobs, rated.top_logprobs))
    for token, logprob, top in zip(rated.tokens[1:], rated.token_logprobs[1:], rated.top_logprobs[1:], strict=True):
        assert top[token] == logprob
        assert 3 <= len(top) <= 4
    without = server.openai().completions.create(**asked)
    assert without.choices[0].logprobs.tokens == rated.tokens[5:]
    assert without.choices[0].logprobs.token_logprobs == pytest.approx(rated.token_logprobs[5:], abs=1e-4)
    streamed = list(server.openai().completions.create(**asked, echo=True, stream=True))
    assert "".join(c.choices[0].text for c in streamed) == choice.text
    assert [t for c in streamed if c.choices[0].logprobs for t in c.choices[0].logprobs.tokens] == rated.tokens


def test_a_prompt_can_be_rated_without_any_output(server: Served) -> None:
    answer = server.openai().completions.create(model=MODEL, prompt="hello", max_tokens=0, echo=True, logprobs=0)
    [choice] = answer.choices
    assert choice.text == "hello"
    assert len(choice.logprobs.token_logprobs) == 5
    assert answer.usage.completion_tokens == 0


def test_cached_tokens_are_counted(server: Served) -> None:
    asked = {"model": MODEL, "prompt": "said twice, found the second time", "max_tokens": 1}
    first, second = (server.openai().completions.create(**asked) for _ in range(2))
    assert first.usage.prompt_tokens_details.cached_tokens < second.usage.prompt_tokens_details.cached_tokens
    assert second.usage.prompt_tokens_details.cached_tokens == second.usage.prompt_tokens - 1


@pytest.mark.parametrize(
    ("change", "status", "param", "code"),
    [
        ({"model": "gpt-4"}, 404, "model", "model_not_found"),
        ({"suffix": "x"}, 400, "suffix", "unsupported_parameter"),
        ({"temperatur": 1.0}, 400, "temperatur", "unknown_parameter"),
        ({"max_tokens": 100_000}, 400, None, "context_length_exceeded"),
        ({"max_tokens": 0}, 400, "max_tokens", None),
        ({"best_of": 1, "n": 2}, 400, "best_of", "invalid_value"),
        ({"logit_bias": {"9999": 1}}, 400, "logit_bias", "invalid_value"),
        ({"prompt": [9999]}, 400, "prompt", "invalid_prompt"),
        ({"prompt": ""}, 400, "prompt", "invalid_value"),
        ({"prompt": [[]]}, 400, "prompt[0]", "invalid_value"),
        ({"prompt": ["a"] * 2000, "n": 3}, 400, "prompt", "invalid_value"),
        ({"prompt": {"a": 1}}, 400, "prompt", "invalid_value"),
        ({"temperature": "warm"}, 400, "temperature", "invalid_value"),
        ({"n": True}, 400, "n", "invalid_value"),
        ({"stream_options": {"x": 1}}, 400, "stream_options.x", "unknown_parameter"),
        ({"structured_outputs": {}}, 400, "structured_outputs", "invalid_value"),
        ({"prompt": ["a", "b" * 2100]}, 400, None, "context_length_exceeded"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_refused_by_name(
    server: Served, change: dict[str, object], status: int, param: str | None, code: str | None, stream: bool
) -> None:
    with server.http() as http:
        answer = http.post("/v1/completions", json={"model": MODEL, "prompt": "a", "stream": stream} | change)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert set(error) == {"message", "type", "param", "code"}
    assert server.client.in_flight() == 0


def test_a_misspelt_field_gets_a_suggestion_and_a_length_its_numbers(server: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="Did you mean 'temperature'"):
        server.openai().completions.create(model=MODEL, prompt="a", extra_body={"temperatur": 1})
    with pytest.raises(openai.BadRequestError, match=r"(?s)needs 3001 tokens.*2048"):
        server.openai().completions.create(model=MODEL, prompt="a", max_tokens=3000)
