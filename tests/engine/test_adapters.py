"""Requests with adapters: each gets what its adapter merged into the model gives, and shares with its kind alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from looseleaf import LLM, SamplingParams
from looseleaf.engine.adapter_names import MAX_NAME_LENGTH, parse_lora
from looseleaf.engine.adapters import UnknownAdapter, load_adapters
from looseleaf.engine.config import EngineConfig
from looseleaf.engine.engine import Engine
from looseleaf.engine.footprint import workspace_bound
from looseleaf.engine.outputs import RequestOutput
from looseleaf.errors import ConfigurationError, InvalidRequest
from looseleaf.kernels import native
from looseleaf.models.decoder import CausalLM
from looseleaf.models.errors import InvalidAdapter
from looseleaf.models.lora import LoraAdapter
from looseleaf.models.native_decoder import NativeCausalLM
from looseleaf.models.weights import destinations
from tiny_adapter import write_adapter
from tiny_model import generate_alone, tiny_engine, tiny_model, write_tiny_folder

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
NAMES = (None, "sql", "legal", "chat")
KINDS: dict[str, dict[str, Any]] = {
    "sql": {"seed": 1},
    "legal": {"seed": 2, "projections": ("q_proj", "v_proj"), "rank": 3},
    "chat": {"seed": 3, "projections": ("up_proj", "k_proj"), "layers": (1,)},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    config = tiny_model().config
    return {name: write_adapter(tmp_path_factory.mktemp(name), config, **kind) for name, kind in KINDS.items()}


@pytest.fixture(scope="module")
def adapters(folders: dict[str, Path]) -> dict[str, LoraAdapter]:
    return load_adapters(folders, tiny_model().config)


@pytest.fixture(scope="module")
def model(adapters: dict[str, LoraAdapter]) -> Any:
    reference = tiny_model()
    loaded = NativeCausalLM.from_reference(reference) if native.is_chosen() else reference
    for name, adapter in adapters.items():
        loaded.add_adapter(name, adapter)
    return loaded


@pytest.fixture(scope="module")
def merged(adapters: dict[str, LoraAdapter]) -> dict[str | None, CausalLM]:
    """The models that the adapters make: W + scaling · B · A."""
    models: dict[str | None, CausalLM] = {None: tiny_model()}
    for name, adapter in adapters.items():
        models[name] = tiny_model()
        places = destinations(models[name])
        for index, layer in enumerate(adapter.layers):
            for projection, matrices in layer.items():
                part = "self_attn" if projection[0] in "qkvo" else "mlp"
                added = matrices.scaling * (matrices.b.double() @ matrices.a.double())
                places[f"model.layers.{index}.{part}.{projection}.weight"].add_(added.float())
    return models


def run(engine: Engine, requests: list[tuple[list[int], SamplingParams, str | None]]) -> list[RequestOutput]:
    ids = [engine.add_request(prompt, params, adapter=adapter) for prompt, params, adapter in requests]
    finished: dict[str, RequestOutput] = {}
    while engine.has_unfinished():
        finished |= {d.request_id: d.request_output for d in engine.step() if d.request_output is not None}
        engine.memory.audit()
    return [finished[request_id] for request_id in ids]


def tokens(output: RequestOutput) -> list[list[int]]:
    return [sample.token_ids for sample in output.outputs]


def test_each_request_gets_what_its_merged_model_gives(model, merged):
    prompts = [[5, 9, 100, 7], [1, 2, 3], [200, 3] * 9, [77]]
    requests = [(prompt, GREEDY, name) for prompt in prompts for name in NAMES]
    found = run(tiny_engine(model), requests)
    for (prompt, _, name), output in zip(requests, found, strict=True):
        assert tokens(output) == [generate_alone(merged[name], prompt, 6)]
    assert len({str(tokens(output)) for output in found[:4]}) == 4  # the adapters do something


def test_beams_are_those_of_the_merged_model(model, merged):
    beams = SamplingParams(beam_width=3, n=3, max_tokens=6, ignore_eos=True)
    for name in NAMES:
        (found,) = run(tiny_engine(model), [([5, 9, 100, 7], beams, name)])
        (expected,) = run(tiny_engine(merged[name]), [([5, 9, 100, 7], beams, None)])
        assert tokens(found) == tokens(expected)


@given(data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.skipif(not native.is_chosen(), reason="exact on native kernels only")
def test_company_chunks_preemption_and_cache_change_no_bit(data, model):
    draw = data.draw
    prompts = draw(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=20), min_size=1, max_size=6))
    params = [
        SamplingParams(
            temperature=draw(st.sampled_from([0, 1])),
            n=draw(st.integers(1, 2)),
            max_tokens=draw(st.integers(1, 8)),
            ignore_eos=True,
            logprobs=1,
            seed=3,
        )
        for _ in prompts
    ]
    requests = list(zip(prompts, params, [draw(st.sampled_from(NAMES)) for _ in prompts], strict=True))
    engine = tiny_engine(
        model,
        num_blocks=draw(st.sampled_from([20, 256])),
        block_size=draw(st.sampled_from([2, 4])),
        max_model_len=40,
        max_num_batched_tokens=draw(st.integers(1, 64)),
        max_num_seqs=draw(st.integers(2, 8)),
    )
    for _ in range(2):  # cold, then from the cache
        for request, output in zip(requests, run(engine, requests), strict=True):
            (alone,) = run(tiny_engine(model, enable_prefix_caching=False), [request])
            assert output.outputs == alone.outputs


def test_two_adapters_never_share_a_block_and_one_adapters_requests_do(model):
    engine = tiny_engine(model)
    prompt = list(range(40))
    for name in NAMES:
        (first,) = run(engine, [(prompt, GREEDY, name)])
        (again,) = run(engine, [(prompt, GREEDY, name)])
        assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 39)
        assert tokens(first) == tokens(again)
    ids = [engine.add_request(prompt, GREEDY, adapter=name) for name in (*NAMES, "sql")]
    engine.step()
    blocks = {}
    for sequence in engine.scheduler.running:
        request_id = sequence.request.request_id
        blocks[request_id] = set(engine.memory.table(sequence.seq_id)[: len(prompt) // 4 - 1].tolist())
    plain, sql, legal, chat, sql_again = (blocks[each] for each in ids)
    assert sql == sql_again
    assert len(plain | sql | legal | chat) == sum(map(len, (plain, sql, legal, chat)))


def test_a_pin_holds_one_adapters_blocks(model):
    engine = tiny_engine(model)
    prompt = list(range(40))
    run(engine, [(prompt, GREEDY, "sql")])
    assert engine.pin_prefix(prompt).num_tokens == 0
    assert engine.pin_prefix(prompt, adapter="sql").num_tokens == 40
    with pytest.raises(UnknownAdapter):
        engine.pin_prefix(prompt, adapter="sq")


@pytest.mark.parametrize("name", ["sq", "", "x" * 100_000, 3, ["sql"]])
def test_an_unknown_adapter_is_refused_with_those_that_exist(name, model):
    engine = tiny_engine(model)
    for attempt in (
        lambda: engine.add_request([1, 2], GREEDY, adapter=name),
        lambda: engine.check("r", engine.read_prompt([1, 2]), GREEDY, name),
        lambda: engine.read_requests([([1, 2], GREEDY, name)]),
    ):
        with pytest.raises(UnknownAdapter, match="There are chat, legal, sql") as refusal:
            attempt()
        assert refusal.value.name == name
        assert refusal.value.available == ["chat", "legal", "sql"]
        assert len(str(refusal.value)) < 300
    assert not engine.has_unfinished()
    with pytest.raises(UnknownAdapter, match="has none"):
        tiny_engine(tiny_model()).add_request([1], adapter="sql")


def test_names_stand_for_one_adapter(adapters):
    for loaded in (tiny_model(), *([NativeCausalLM.from_reference(tiny_model())] if native.is_available() else [])):
        loaded.add_adapter("sql", adapters["sql"])
        with pytest.raises(ValueError, match="already"):
            loaded.add_adapter("sql", adapters["legal"])


def test_the_library_takes_one_adapter_or_one_per_prompt(folders, merged, tmp_path):
    lora = {name: folders[name] for name in ("sql", "legal")}
    llm = LLM(
        write_tiny_folder(tmp_path / "model"), dtype="float32", kv_cache_memory="64KB", max_model_len=64, lora=lora
    )
    prompts = [[5, 9, 100], [7, 8], [1]]

    def expected(names: list[str | None]) -> list[list[list[int]]]:
        return [[generate_alone(merged[name], prompt, 6)] for prompt, name in zip(prompts, names, strict=True)]

    assert [tokens(o) for o in llm.generate(prompts, GREEDY)] == expected([None] * 3)
    assert [tokens(o) for o in llm.generate(prompts, GREEDY, adapter="sql")] == expected(["sql"] * 3)
    mixed = ["legal", None, "sql"]
    assert [tokens(o) for o in llm.generate(prompts, GREEDY, adapter=mixed)] == expected(mixed)
    streamed = [token for delta in llm.stream([5, 9, 100], GREEDY, adapter="legal") for token in delta.token_ids]
    assert [[streamed]] == expected(mixed)[:1]
    chat = [{"role": "user", "content": "hi"}]
    assert tokens(llm.chat(chat, GREEDY, adapter="sql")) != tokens(llm.chat(chat, GREEDY))
    with pytest.raises(InvalidRequest, match="3 prompts but 2 adapters"):
        llm.generate(prompts, GREEDY, adapter=["sql", None])
    with pytest.raises(UnknownAdapter):
        llm.generate(prompts, GREEDY, adapter=[None, None, "chat"])
    assert llm.engine.model.nbytes > tiny_model().nbytes


def test_an_adapter_that_does_not_fit_is_named_before_the_weights_are_read(tmp_path):
    bad = write_adapter(tmp_path / "a", tiny_model(hidden_size=64).config)
    folder = write_tiny_folder(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(InvalidAdapter, match="Adapter 'wrong': The adapter does not fit"):
        LLM(folder, lora={"wrong": bad})


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        (["sql"], "must map names"),
        ({"": "x"}, "no name"),
        ({" sql": "x"}, "no name"),
        ({"a\nb": "x"}, "no name"),
        ({3: "x"}, "no name"),
        ({"sql": ""}, "path"),
        ({"sql": None}, "path"),
        ({"x" * (MAX_NAME_LENGTH + 1): "y"}, "257 characters"),
    ],
)
def test_names_and_paths_that_make_no_sense_are_refused(lora, message):
    with pytest.raises(ConfigurationError, match=message) as refusal:
        EngineConfig(lora=lora)
    assert len(str(refusal.value)) < 300


def test_the_grammar_of_the_command_line():
    assert parse_lora(["a=b", "long name=/x/y=z"]) == {"a": "b", "long name": "/x/y=z"}
    assert parse_lora([]) == {}
    for entries in (["a"], ["=b"], ["a="], [" =x"], [""]):
        with pytest.raises(ConfigurationError, match="names no adapter"):
            parse_lora(entries)
    with pytest.raises(ConfigurationError, match="Two adapters are called 'a'"):
        parse_lora(["a=b", "a=c"])


def test_a_step_with_adapters_may_take_more_and_one_without_none():
    config, shape = EngineConfig(dtype="float32"), tiny_model().config
    plain = workspace_bound(shape, config, 64)
    assert workspace_bound(shape, config, 64, 0) == plain
    assert workspace_bound(shape, config, 64, 8) < workspace_bound(shape, config, 64, 64)
    assert workspace_bound(shape, config, 64, 1) > plain


@pytest.mark.skipif(not native.is_chosen(), reason="the reference keeps nothing")
def test_the_native_steps_scratch_stays_below_the_bound(adapters):
    shape = tiny_model(intermediate_size=512).config
    reference = tiny_model(intermediate_size=512)
    added = {}
    for adapted in (False, True):
        decoder = NativeCausalLM.from_reference(reference)
        adapter = LoraAdapter(
            tuple(
                {"gate_proj": type(m)(m.a, torch.zeros(512, len(m.a)), 1.0)}
                for m in (layer["q_proj"] for layer in adapters["sql"].layers)
            )
        )
        decoder.add_adapter("it", adapter)
        engine = tiny_engine(decoder, num_blocks=512, max_model_len=96, max_num_batched_tokens=96)
        run(engine, [(list(range(90)), GREEDY, "it" if adapted else None)])
        added[adapted] = decoder.scratch_bytes
    config = EngineConfig(dtype="float32", max_num_batched_tokens=96)
    bound = workspace_bound(shape, config, 96, 4) - workspace_bound(shape, config, 96)
    assert 0 < added[True] - added[False] <= bound
