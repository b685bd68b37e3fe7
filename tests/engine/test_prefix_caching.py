"""What a user of the engine sees of the prefix cache: what is computed, what is shared, and what is said about it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from looseleaf.engine.engine import Engine
from looseleaf.engine.outputs import RequestOutput
from looseleaf.engine.prefix_caching import explain_divergence
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.errors import ConfigurationError, InvalidRequest
from looseleaf.memory.errors import PinTooLarge, UnknownPin
from looseleaf.models.decoder import CausalLM
from looseleaf.scheduler.interface import StepPlan
from tiny_model import tiny_engine, tiny_model

PROMPT = [(7 * i) % 50 + 3 for i in range(23)]


@pytest.fixture(scope="module")
def model() -> CausalLM:
    return tiny_model()


class Recorded:
    """An engine, and the tokens that each of its steps computed."""

    def __init__(self, model: CausalLM, **settings: Any) -> None:
        self.engine = tiny_engine(model, **settings)
        self.computed: list[int] = []
        self.engine.on_plan = self._observe

    def _observe(self, plan: StepPlan) -> None:
        self.computed.append(plan.num_tokens)

    def run(self, *prompts: list[int], max_tokens: int = 6, **options: Any) -> list[RequestOutput]:
        add = {name: options.pop(name) for name in ("cache_salt", "adapter") if name in options}
        params = SamplingParams(**({"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True} | options))
        ids = [self.engine.add_request(prompt, params, **add) for prompt in prompts]
        results = {output.request_id: output for output in finish(self.engine)}
        return [results[each] for each in ids]

    def ask(self, prompt: list[int], **options: Any) -> RequestOutput:
        return self.run(prompt, **options)[0]


def finish(engine: Engine) -> Iterator[RequestOutput]:
    while engine.has_unfinished():
        for delta in engine.step():
            if delta.request_output is not None:
                yield delta.request_output
        engine.memory.audit()


def tokens(output: RequestOutput) -> list[list[int]]:
    return [sample.token_ids for sample in output.outputs]


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9, 23])
@pytest.mark.parametrize("block_size", [1, 4, 64])
def test_a_prompt_asked_again_computes_its_last_token_only(model: CausalLM, length: int, block_size: int) -> None:
    recorded = Recorded(model, block_size=block_size, num_blocks=64)
    first = recorded.ask(PROMPT[:length])
    assert (first.num_cached_tokens, recorded.computed[0]) == (0, length)
    recorded.computed.clear()
    again = recorded.ask(PROMPT[:length])
    assert (again.num_cached_tokens, recorded.computed[0]) == (length - 1, 1)
    assert tokens(again) == tokens(first)


def test_the_next_turn_of_a_chat_finds_the_answer_too(model: CausalLM) -> None:
    recorded = Recorded(model)
    answer = recorded.ask(PROMPT, max_tokens=10).outputs[0].token_ids
    second = [*PROMPT, *answer, 40, 41, 42]
    # The answer's last token was never computed: nothing came after it.
    assert recorded.ask(second).num_cached_tokens == len(PROMPT) + len(answer) - 1
    assert tokens(recorded.ask(second)) == tokens(Recorded(model, enable_prefix_caching=False).ask(second))


def test_requests_that_arrive_together_compute_their_common_blocks_once(model: CausalLM) -> None:
    recorded = Recorded(model)
    prompts = [[*PROMPT[:20], 40 + i, 45] for i in range(4)]
    outputs = recorded.run(*prompts)
    assert recorded.computed[0] == 22 + 3 * 2
    assert [output.num_cached_tokens for output in outputs] == [0, 20, 20, 20]
    cold = Recorded(model, enable_prefix_caching=False)
    assert [tokens(output) for output in outputs] == [tokens(output) for output in cold.run(*prompts)]
    assert cold.computed[0] == 4 * 22


def test_other_salts_share_nothing(model: CausalLM) -> None:
    recorded = Recorded(model)
    recorded.ask(PROMPT, cache_salt="one tenant")
    other = recorded.ask(PROMPT, cache_salt="another")
    assert (other.num_cached_tokens, other.cache_divergence) == (0, None), "not even a hint of what others have asked"
    assert recorded.ask(PROMPT).num_cached_tokens == 0
    assert recorded.ask(PROMPT, cache_salt="one tenant").num_cached_tokens == len(PROMPT) - 1


@pytest.mark.parametrize("salt", ["x" * 256, "\0" * 256, "é" * 256, "\\" * 256])
def test_a_salt_of_allowed_length_is_taken(model: CausalLM, salt: str) -> None:
    recorded = Recorded(model)
    recorded.ask(PROMPT, cache_salt=salt)
    assert recorded.ask(PROMPT, cache_salt=salt).num_cached_tokens == len(PROMPT) - 1


@pytest.mark.parametrize("salt", ["x" * 257, 5, None])
def test_a_salt_that_is_none_is_refused(model: CausalLM, salt: Any) -> None:
    engine = tiny_engine(model)
    with pytest.raises(InvalidRequest, match="cache salt"):
        engine.add_request(PROMPT, cache_salt=salt)
    assert not engine.has_unfinished()


def test_samples_of_a_cached_prompt(model: CausalLM) -> None:
    options: dict[str, Any] = {"n": 4, "temperature": 1.0, "seed": 5, "max_tokens": 9}
    recorded = Recorded(model)
    first, again = recorded.ask(PROMPT, **options), recorded.ask(PROMPT, **options)
    assert again.num_cached_tokens == len(PROMPT) - 1
    assert tokens(first) == tokens(again) == tokens(Recorded(model, enable_prefix_caching=False).ask(PROMPT, **options))


def test_samples_that_end_with_their_first_token_leave_no_trap(model: CausalLM) -> None:
    """Sample 0 ends as it forks: its begun block is still written by the others."""
    recorded = Recorded(model)
    expected = tokens(Recorded(model, enable_prefix_caching=False).ask(PROMPT, max_tokens=12))
    first = recorded.ask(PROMPT, max_tokens=1).outputs[0].token_ids[0]
    recorded.engine.reset_prefix_cache()
    recorded.run(PROMPT, n=3, temperature=1.0, seed=1, max_tokens=9, stop_token_ids=[first])
    assert tokens(recorded.ask(PROMPT, max_tokens=12)) == expected


def test_logprobs_of_a_prompt_are_computed_whatever_is_cached(model: CausalLM) -> None:
    recorded = Recorded(model)
    recorded.ask(PROMPT)
    asked = recorded.ask(PROMPT, prompt_logprobs=1)
    assert asked.num_cached_tokens == 0
    assert asked.prompt_logprobs is not None
    assert len(asked.prompt_logprobs) == len(PROMPT)
    assert asked.prompt_logprobs == Recorded(model).ask(PROMPT, prompt_logprobs=1).prompt_logprobs


def test_a_preempted_request_finds_what_it_had_computed(model: CausalLM) -> None:
    prompts = [[*PROMPT[:12], 50 + i] for i in range(4)]
    undisturbed = Recorded(model, enable_prefix_caching=False).run(*prompts, max_tokens=30)
    recorded = Recorded(model, num_blocks=22, watermark=0)
    outputs = recorded.run(*prompts, max_tokens=30)
    assert [tokens(output) for output in outputs] == [tokens(output) for output in undisturbed]
    scheduler = recorded.engine.scheduler
    assert scheduler.num_preemptions > 0
    cold = Recorded(model, num_blocks=22, watermark=0, enable_prefix_caching=False)
    cold.run(*prompts, max_tokens=30)
    assert 0 <= scheduler.num_recomputed_tokens < cold.engine.scheduler.num_recomputed_tokens


def test_engines_that_take_turns_with_one_kv_cache(model: CausalLM) -> None:
    first = tiny_engine(model)
    second = Engine(model, first.tokenizer, first.config, first.pool, kv_cache=first.kv_cache)
    expected = {}
    for start in (0, 9):
        expected[start] = tokens(Recorded(model).ask(PROMPT[start:]))
    for engine, start in ((first, 0), (second, 9), (first, 0), (first, 0), (second, 9)):
        engine.add_request(PROMPT[start:], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
        assert [tokens(output) for output in finish(engine)] == [expected[start]]


def test_a_near_miss_is_explained_in_words(model: CausalLM) -> None:
    recorded = Recorded(model)
    tokenizer = recorded.engine.tokenizer
    recorded.ask(tokenizer.encode("The capital of France is"), max_tokens=1)
    prompt = tokenizer.encode("The capital of Italy is")
    missed = recorded.ask(prompt)
    at = len(tokenizer.encode("The capital of "))
    assert missed.cache_divergence == (at, tokenizer.encode("F")[0])
    explanation = explain_divergence(missed, tokenizer)
    assert explanation is not None
    assert f"at token {at} of {len(prompt)}" in explanation
    assert "'I' here, 'F' there" in explanation
    assert "capital of '" in explanation
    assert explain_divergence(recorded.ask(prompt), tokenizer) is None


class TestPins:
    def test_a_pinned_prompt_outlives_others(self, model: CausalLM) -> None:
        recorded = Recorded(model, num_blocks=24)
        recorded.ask(PROMPT[:20])
        pin = recorded.engine.pin_prefix(PROMPT[:20])
        assert pin.num_tokens == 20
        for other in range(4):
            recorded.ask([30 + other] * 40, max_tokens=20)
        assert recorded.ask([*PROMPT[:20], 5]).num_cached_tokens == 20
        recorded.engine.unpin_prefix(pin.pin_id)
        for other in range(4):
            recorded.ask([30 + other] * 40, max_tokens=20)
        assert recorded.ask([*PROMPT[:20], 5]).num_cached_tokens == 0
        with pytest.raises(UnknownPin):
            recorded.engine.unpin_prefix(pin.pin_id)

    def test_a_pin_ends_with_its_time(self, model: CausalLM) -> None:
        now = [100.0]
        engine = tiny_engine(model)
        engine = Engine(model, engine.tokenizer, engine.config, engine.pool, clock=lambda: now[0])
        params = SamplingParams(max_tokens=1)
        engine.add_request(PROMPT, params)
        list(finish(engine))
        engine.pin_prefix(PROMPT, ttl_seconds=10)
        for later, pinned in ((9.9, 5), (10.0, 0)):
            now[0] = 100.0 + later
            engine.add_request([3], params)
            list(finish(engine))
            counts = engine.prefix_cache_counts()
            assert counts is not None
            assert counts.pinned_blocks == pinned

    @pytest.mark.parametrize("time", [math.nan, -1, "an hour", None])
    def test_a_time_that_is_none_is_refused(self, model: CausalLM, time: Any) -> None:
        with pytest.raises(InvalidRequest, match="ttl_seconds"):
            tiny_engine(model).pin_prefix(PROMPT, ttl_seconds=time)

    def test_one_that_is_too_large_changes_nothing(self, model: CausalLM) -> None:
        recorded = Recorded(model, num_blocks=24, max_pinned_share=0.1)
        recorded.ask(PROMPT)
        with pytest.raises(PinTooLarge, match=r"5 blocks.*at most 2"):
            recorded.engine.pin_prefix(PROMPT)
        assert recorded.ask(PROMPT).num_cached_tokens == len(PROMPT) - 1

    def test_pins_never_keep_a_request_from_running(self, model: CausalLM) -> None:
        recorded = Recorded(model, num_blocks=12, max_pinned_share=1.0)
        recorded.ask(PROMPT)
        recorded.engine.pin_prefix(PROMPT)
        assert len(tokens(recorded.ask([9] * 30, max_tokens=18))[0]) == 18

    @pytest.mark.parametrize("settings", [{"enable_prefix_caching": False}, {"allocator": "contiguous-max"}])
    def test_without_a_cache_there_is_nothing_to_pin(self, model: CausalLM, settings: dict[str, Any]) -> None:
        recorded = Recorded(model, **settings)
        recorded.ask(PROMPT)
        assert recorded.ask(PROMPT).num_cached_tokens == 0
        with pytest.raises(ConfigurationError, match="no prefix cache"):
            recorded.engine.pin_prefix(PROMPT)
        recorded.engine.reset_prefix_cache()


def test_a_reset_while_requests_run_harms_nobody(model: CausalLM) -> None:
    recorded = Recorded(model)
    expected = tokens(Recorded(model).ask(PROMPT, max_tokens=20))
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    for _ in range(2):
        recorded.engine.add_request(PROMPT, params)
    for _ in range(4):
        recorded.engine.step()
    recorded.engine.reset_prefix_cache()
    recorded.engine.memory.audit()
    assert [tokens(output) for output in finish(recorded.engine)] == [expected] * 2
    assert recorded.engine.memory.usage().cached == 0
    assert tokens(recorded.ask(PROMPT, max_tokens=20)) == expected
    assert recorded.ask(PROMPT).num_cached_tokens == len(PROMPT) - 1
