"""Sampling parameters: what is refused, with which words, and what is kept in which form."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest

from looseleaf.engine.sampling_errors import InvalidParameter, UnknownParameter
from looseleaf.engine.sampling_params import MAX_STOP_LENGTH, MAX_STOP_STRINGS, SamplingParams
from looseleaf.errors import InvalidRequest

HUGE = 10**400
NOT_INTEGERS: list[Any] = [True, 1.0, "1", math.nan, math.inf, [1], HUGE, -HUGE]
NOT_REALS: list[Any] = [True, "0.5", math.nan, math.inf, -math.inf, None, [0.5], 1j, HUGE, -HUGE]

BAD: dict[str, list[Any]] = {
    "n": [0, -1, None, 16_385, *NOT_INTEGERS],
    "best_of": [0, -1, *NOT_INTEGERS],
    "beam_width": [0, -1, 16_385, *NOT_INTEGERS],
    "length_penalty": [-10.1, 10.1, *NOT_REALS],
    "early_stopping": [1, 0, None, "always", "true", []],
    "temperature": [-0.1, -1e-9, 100.1, *NOT_REALS],
    "top_k": [-2, None, 2**31, *NOT_INTEGERS],
    "top_p": [0, 0.0, -0.1, 1.0001, *NOT_REALS],
    "min_p": [-0.1, 1.1, *NOT_REALS],
    "repetition_penalty": [0, -1.0, 101, *NOT_REALS],
    "presence_penalty": [-2.1, 2.1, *NOT_REALS],
    "frequency_penalty": [-2.1, 2.1, *NOT_REALS],
    "logit_bias": [
        {-1: 1.0},
        {1: math.nan},
        {1: math.inf},
        {1: 101},
        {1: "1"},
        {1: True},
        {True: 1.0},
        {1.5: 1.0},
        {"x": 1.0},
        {"-1": 1.0},
        {"²": 1.0},
        {"9" * 5000: 1.0},
        [1],
        3,
    ],
    "stop": ["", ["a", ""], [1], 1, b"a", ["a"] * (MAX_STOP_STRINGS + 1), "x" * (MAX_STOP_LENGTH + 1), [None]],
    "stop_token_ids": [[-1], [1.0], [True], "12", ["1"], 1.5, [None]],
    "include_stop_str_in_output": [1, 0, None, "yes"],
    "min_tokens": [-1, None, 2**31, *NOT_INTEGERS],
    "max_tokens": [0, -1, 2**31, *NOT_INTEGERS],
    "ignore_eos": [1, None],
    "logprobs": [-1, 2**31, *NOT_INTEGERS],
    "prompt_logprobs": [-1, 2**31, *NOT_INTEGERS],
    "seed": [2**64, -(2**63) - 1, *NOT_INTEGERS],
    "skip_special_tokens": [0, None],
    "detokenize": [0, None],
    "structured": [{}, {"yaml": True}, {"regex": "a", "choice": ["a"]}, "regex", 7, [("regex", "a")]],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_bad_value_is_named_with_its_allowed_range(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**{name: value})
    assert caught.value.name == name
    assert str(caught.value).startswith(name)
    assert "must be" in str(caught.value)
    assert len(str(caught.value)) < 400
    assert isinstance(caught.value, InvalidRequest)


def test_a_number_too_long_to_print_is_refused_in_words() -> None:
    with pytest.raises(InvalidParameter, match="too long to print"):
        SamplingParams(max_tokens=10**5000)


def test_every_parameter_is_in_the_table_of_bad_values() -> None:
    assert set(BAD) == set(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("temprature", "temperature"), ("topp", "top_p"), ("max_token", "max_tokens"), ("zzz", None)],
)
def test_unknown_name_is_refused_with_the_closest_known_one(name: str, suggestion: str | None) -> None:
    for construct in (lambda: SamplingParams(**{name: 1}), lambda: SamplingParams.parse({name: 1})):
        with pytest.raises(UnknownParameter) as caught:
            construct()
        assert (caught.value.name, caught.value.suggestion) == (name, suggestion)
        assert isinstance(caught.value, InvalidRequest)
        assert suggestion is None or suggestion in str(caught.value)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"min_tokens": 11, "max_tokens": 10}, "min_tokens"),
    ],
)
def test_parameters_that_contradict_each_other(values: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**values)
    assert caught.value.name == name


def test_edges_of_the_ranges_are_allowed() -> None:
    SamplingParams(temperature=0, top_k=-1, top_p=1, min_p=1, repetition_penalty=100, presence_penalty=-2)
    SamplingParams(n=4, best_of=4, min_tokens=10, max_tokens=10, logprobs=0, seed=2**64 - 1)
    assert SamplingParams(min_tokens=300).most_tokens(1_000) == 300  # the default maximum gives way
    SamplingParams(max_tokens=None, min_tokens=10_000, seed=-(2**63), top_p=1e-12, temperature=100)


def test_values_are_kept_in_one_plain_form() -> None:
    params = SamplingParams(
        n=np.int64(2),
        temperature=np.float32(0.5),
        stop="END",
        stop_token_ids={np.int32(7)},
        logit_bias={"5": 1, np.int64(6): -2},
    )
    assert params.stop == ("END",)
    assert params.stop_token_ids == (7,)
    assert params.logit_bias == {5: 1.0, 6: -2.0}
    assert type(params.n) is int
    assert type(params.temperature) is float
    assert all(type(key) is int for key in params.logit_bias)
    assert SamplingParams(stop=None, logit_bias={}).stop == ()


def test_later_changes_to_the_callers_containers_do_not_reach_the_parameters() -> None:
    bias, stop = {1: 1.0}, ["a"]
    params = SamplingParams(logit_bias=bias, stop=stop)
    bias[2] = math.nan
    stop.append("")
    assert params.logit_bias == {1: 1.0}
    assert params.stop == ("a",)


def test_parameters_survive_copy_and_pickle() -> None:
    params = SamplingParams(n=2, stop=["a"], logit_bias={3: 1.0}, seed=5)
    assert copy.deepcopy(params) == params
    assert pickle.loads(pickle.dumps(params)) == params


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"logit_bias": {100: 1.0}}, "logit_bias"),
        ({"stop_token_ids": [3, 100]}, "stop_token_ids"),
        ({"logprobs": 101}, "logprobs"),
        ({"prompt_logprobs": 101}, "prompt_logprobs"),
    ],
)
def test_vocabulary_bounds(values: dict[str, Any], name: str) -> None:
    params = SamplingParams(**values)
    params.validate_for(200)
    with pytest.raises(InvalidParameter) as caught:
        params.validate_for(100)
    assert caught.value.name == name
    assert "100" in str(caught.value)
