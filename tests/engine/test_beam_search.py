"""Beams give what transformers' beam search gives, token for token."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.engine.beam_search import BeamSearch, Continuations, continuations
from looseleaf.engine.outputs import RequestOutput
from looseleaf.engine.sampling_errors import InvalidParameter, SamplingFailed
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.models.decoder import CausalLM
from tiny_model import full_logits, tiny_engine, tiny_model, write_tiny_folder

EOS = 256


@cache
def models(seed: int) -> tuple[CausalLM, Any]:
    """A tiny model, and the same one in transformers."""
    model = tiny_model(seed)
    with TemporaryDirectory() as folder:
        write_tiny_folder(Path(folder), model)
        return model, transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def search(model: CausalLM, prompt: list[int], params: SamplingParams, **settings: Any) -> RequestOutput:
    engine = tiny_engine(model, **settings)
    engine.add_request(prompt, params)
    found = None
    while engine.has_unfinished():
        for delta in engine.step():
            found = delta.request_output or found
        engine.memory.audit()
    assert engine.memory.num_free_blocks == engine.memory.num_blocks
    assert found is not None
    return found


def search_with_transformers(model: Any, prompt: list[int], ends: list[int], **asked: Any) -> tuple[list[Any], Any]:
    """Output tokens up to the first end, and scores."""
    generated = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **asked,
    )
    outputs = []
    for sequence in generated.sequences[:, len(prompt) :].tolist():
        ended = next((place + 1 for place, token in enumerate(sequence) if token in ends), len(sequence))
        outputs.append(sequence[:ended])
    return outputs, getattr(generated, "sequences_scores", None)


@given(data=st.data(), seed=st.integers(0, 2), prompt=st.lists(st.integers(0, 255), min_size=1, max_size=20))
@settings(max_examples=40, deadline=None)
def test_outputs_and_scores_are_those_of_transformers(data: st.DataObject, seed: int, prompt: list[int]) -> None:
    model, reference = models(seed)
    width = data.draw(st.integers(1, 6))
    n = data.draw(st.integers(1, width))
    max_tokens = data.draw(st.integers(1, 14))
    min_tokens = data.draw(st.just(0) | st.integers(0, max_tokens))
    length_penalty = data.draw(st.sampled_from([1.0, 0.0, -1.0, 2.0]) | st.floats(-2, 2))
    early_stopping = data.draw(st.sampled_from([False, True, "never"]))
    free = search(model, prompt, SamplingParams(beam_width=width, n=width, max_tokens=max_tokens))
    likely = sorted({token for output in free.outputs for token in output.token_ids})
    stops = data.draw(st.lists(st.sampled_from(likely), max_size=3, unique=True))
    bias = data.draw(st.none() | st.dictionaries(st.sampled_from(likely), st.floats(-3, 3), min_size=1, max_size=2))
    # transformers penalises a single beam's logits, ours its log-probabilities.
    penalty = data.draw(st.sampled_from([1.0, 1.0, 1.3])) if width > 1 else 1.0
    params = SamplingParams(
        beam_width=width,
        n=n,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        stop_token_ids=stops,
        logit_bias=bias,
        repetition_penalty=penalty,
    )
    found = search(model, prompt, params, block_size=data.draw(st.sampled_from([1, 4, 16])))
    expected, scores = search_with_transformers(
        reference,
        prompt,
        list(dict.fromkeys([EOS, *stops])),
        num_beams=width,
        num_return_sequences=n,
        max_new_tokens=max_tokens,
        min_new_tokens=min_tokens or None,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        sequence_bias={(token,): bias[token] for token in bias} if bias else None,
        repetition_penalty=penalty,
    )
    assert [output.token_ids for output in found.outputs] == expected
    if width > 1:
        assert [output.score for output in found.outputs] == pytest.approx(scores.tolist(), rel=1e-4, abs=1e-4)


def test_logprobs_are_the_models_own_whatever_biases_the_search() -> None:
    model, _ = models(0)
    prompt = [3, 1, 4, 1, 5]
    params = SamplingParams(beam_width=3, n=3, max_tokens=6, logit_bias={7: 4.0}, presence_penalty=1, logprobs=2)
    for output in search(model, prompt, params).outputs:
        rows = torch.log_softmax(full_logits(model, prompt + output.token_ids), -1)[len(prompt) - 1 : -1]
        own = [float(row[token]) for row, token in zip(rows, output.token_ids, strict=True)]
        assert output.logprobs is not None
        assert output.cumulative_logprob == pytest.approx(sum(own), abs=1e-4)
        for row, token, told in zip(rows, output.token_ids, output.logprobs, strict=True):
            assert told[token].logprob == pytest.approx(float(row[token]), abs=1e-5)
            assert set(row.topk(2).indices.tolist()) <= set(told)


def found(*beams: dict[int, float]) -> Continuations:
    ranked = [sorted(beam.items(), key=lambda item: -item[1]) for beam in beams]
    scores = np.array([[score for _, score in beam] for beam in ranked])
    return Continuations(np.array([[token for token, _ in beam] for beam in ranked]), scores, scores)


def beam_search(width: int, **changes: Any) -> BeamSearch:
    return BeamSearch(width, SamplingParams(beam_width=width, **changes), [EOS], max_tokens=10)


def test_an_end_counts_only_among_the_best_and_costs_no_beam() -> None:
    search = beam_search(2)
    assert search.advance(found({1: -1.0, 2: -2.0, EOS: -3.0, 3: -4.0})) == [0, 0]
    assert not search.hypotheses  # the end was third of two
    parents = search.advance(found({EOS: -0.1, 4: -1.0, 5: -5.0, 6: -6.0}, {7: -0.5, EOS: -1.5, 8: -6.0, 9: -7.0}))
    assert [hypothesis.token_ids for hypothesis in search.hypotheses] == [(1, EOS)]
    assert [beam.token_ids for beam in search.beams] == [(1, 4), (2, 7)]
    assert parents == [0, 1]
    assert search.score(search.hypotheses[0]) == pytest.approx(-1.1 / 2)


def test_equal_continuations_go_by_beam_and_then_by_token() -> None:
    search = beam_search(2)
    search.advance(found({4: -1.0, 9: -1.0, 5: -2.0, 6: -3.0}))
    assert [beam.token_ids for beam in search.beams] == [(4,), (9,)]
    search.advance(found({1: -1.0, 2: -1.0, 3: -2.0, 5: -3.0}, {0: -1.0, 3: -1.0, 4: -2.0, 5: -3.0}))
    assert [beam.token_ids for beam in search.beams] == [(4, 1), (4, 2)]


@pytest.mark.parametrize(("early_stopping", "over"), [(True, True), (False, True), ("never", False)])
def test_when_a_longer_output_could_still_be_better(early_stopping: Any, over: bool) -> None:
    search = beam_search(2, early_stopping=early_stopping)
    search.advance(found({1: -1.0, 2: -1.5, EOS: -9.0, 3: -9.0}))
    search.advance(found({EOS: -3.0, 4: -3.6, 5: -9.0, 6: -9.0}, {EOS: -3.0, 7: -3.6, 8: -9.0, 9: -9.0}))
    assert len(search.hypotheses) == 2
    assert search.done == over


@pytest.mark.parametrize(("early_stopping", "over"), [(True, True), (False, False), ("never", False)])
def test_enough_outputs_end_the_search_only_if_asked(early_stopping: Any, over: bool) -> None:
    search = beam_search(2, early_stopping=early_stopping)
    search.advance(found({1: -1.0, EOS: -5.0, 2: -6.0, 3: -9.0}))
    search.advance(found({EOS: -1.0, 4: -1.5, 5: -9.0, 6: -9.0}, {7: -9.0, 8: -9.0, 9: -9.0, 10: -9.0}))
    assert len(search.hypotheses) == 2
    assert search.done == over


def test_a_beam_alone_is_greedy() -> None:
    search = beam_search(1)
    search.advance(found({1: -1.0, EOS: -1.1}))
    assert not search.done
    search.advance(found({EOS: -1.0, 2: -1.01}))
    assert search.done
    assert [hypothesis.token_ids for hypothesis in search.best(1)] == [(1, EOS)]


def test_until_it_is_over_beams_on_their_way_make_up_the_best() -> None:
    search = beam_search(2)
    assert search.best(2) == []
    search.advance(found({EOS: -0.5, 1: -1.0, 2: -2.0, 3: -3.0}))
    assert [hypothesis.token_ids for hypothesis in search.best(2)] == [(EOS,), (1,)]


def test_logits_that_are_no_numbers_are_refused() -> None:
    logits = torch.zeros(3, 20)
    logits[1, 4] = torch.nan
    assert continuations(logits, np.array([0, 2]), 4).token_ids.tolist() == [[0, 1, 2, 3]] * 2
    with pytest.raises(SamplingFailed, match="nan"):
        continuations(logits, np.array([0, 1]), 4)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 2, "n": 3}, "n"),
        ({"beam_width": 2, "temperature": 0.7}, "temperature"),
        ({"beam_width": 2, "top_k": 5}, "top_k"),
        ({"beam_width": 2, "top_p": 0.5}, "top_p"),
        ({"beam_width": 2, "min_p": 0.1}, "min_p"),
        ({"beam_width": 2, "best_of": 2}, "best_of"),
        ({"beam_width": 2, "stop": "."}, "stop"),
        ({"beam_width": 2, "length_penalty": 11}, "length_penalty"),
        ({"beam_width": 2, "early_stopping": "always"}, "early_stopping"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
    ],
)
def test_what_has_no_meaning_with_beams_or_without_is_refused_by_name(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**changes)
    assert caught.value.name == name
