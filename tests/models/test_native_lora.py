"""Adapters in the native step: as in the readable decoder, and a row's bits are its own whoever shares the step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from looseleaf.kernels import native
from looseleaf.kernels.linear import pack
from looseleaf.models.decoder import CausalLM
from looseleaf.models.lora import LoraAdapter, LoraMatrices, load_lora
from looseleaf.models.native_decoder import NativeCausalLM
from tiny_adapter import write_adapter
from tiny_model import tiny_model

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the native extension was not built")

ODD_SIZES: dict[str, Any] = {
    "hidden_size": 40,
    "intermediate_size": 52,
    "num_heads": 3,
    "num_kv_heads": 1,
    "head_dim": 10,
    "qk_norm": True,
    "qkv_bias": True,
    "mlp_bias": True,
    "sliding_windows": (None, 3),
}
KINDS: dict[str, dict[str, Any]] = {
    "all": {"rank": 5},
    "wide": {"rank": 40, "alpha": 10, "dtype": torch.bfloat16},
    "attention": {"projections": ("q_proj", "v_proj", "o_proj")},
    "up": {"projections": ("up_proj",), "layers": (1,), "rank": 1},
    "gate and key": {"projections": ("gate_proj", "k_proj"), "layers": (0,), "rank": 17},
}
NAMES = [None, *KINDS]


@pytest.fixture(scope="module")
def reference() -> CausalLM:
    return tiny_model(**ODD_SIZES)


@pytest.fixture(scope="module")
def adapters(reference: CausalLM, tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoraAdapter]:
    def make(folder: Path, seed: int, settings: dict[str, Any]) -> LoraAdapter:
        return load_lora(write_adapter(folder, reference.config, seed=seed, **settings), reference.config)

    return {n: make(tmp_path_factory.mktemp("adapter"), i, s) for i, (n, s) in enumerate(KINDS.items())}


@pytest.fixture(scope="module")
def with_adapters(reference: CausalLM, adapters: dict[str, LoraAdapter]) -> Callable[..., NativeCausalLM]:
    def make(quantization: str = "none") -> NativeCausalLM:
        decoder = NativeCausalLM.from_reference(reference, quantization)
        for name, adapter in adapters.items():
            decoder.add_adapter(name, adapter)
        return decoder

    return make


def prompts_of(generator: np.random.Generator, lengths: Any) -> list[list[int]]:
    return [generator.integers(0, 257, length).tolist() for length in lengths]


@pytest.mark.parametrize("isa", native.available_isas())
def test_it_computes_what_the_reference_computes(isa, adapters, with_adapters, paged_run):
    plain = tiny_model(**ODD_SIZES)
    for name, adapter in adapters.items():
        plain.add_adapter(name, adapter)
    prompts = prompts_of(np.random.default_rng(0), [3, 9, 1, 30, 12, 7, 2])
    chosen = [*NAMES, "all"]
    expected = torch.cat(paged_run(plain, prompts, adapters=chosen).run_whole())
    bare = torch.cat(paged_run(plain, prompts).run_whole())
    assert (expected - bare).abs().max() > 1
    with native.use_isa(isa):
        found = torch.cat(paged_run(with_adapters(), prompts, adapters=chosen).run_whole())
    if isa in ("avx512_bf16", "amx"):  # activations are rounded where A is bfloat16
        assert (found - expected).square().mean() < 1e-2 * (expected - bare).square().mean()
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)


@given(seed=st.integers(0, 2**32 - 1), data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_company_adapters_chunks_and_threads_do_not_change_a_bit(
    quantization, seed, data, reference, with_adapters, paged_run
):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 40, size=generator.integers(1, 7))
    prompts = prompts_of(generator, lengths)
    chosen = [data.draw(st.sampled_from(NAMES)) for _ in prompts]
    decoder, bare = with_adapters(quantization), NativeCausalLM.from_reference(reference, quantization)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = [
            paged_run(bare if name is None else decoder, [prompt], block_size=16, adapters=name and [name]).run_whole()
            for prompt, name in zip(prompts, chosen, strict=True)
        ]
        torch.set_num_threads(2)
        run = paged_run(decoder, prompts, block_size=int(generator.integers(1, 17)), seed=seed % 1000, adapters=chosen)
        together = run.run_in_pieces(generator)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, logits) for (one,), logits in zip(alone, together, strict=True))


def test_steps_of_many_rows_are_cut_without_a_trace(with_adapters, paged_run):
    decoder = with_adapters()
    prompts = prompts_of(np.random.default_rng(1), [400, 70, 1, 300, 33])
    chosen = ["all", None, "wide", "gate and key", "all"]
    together = paged_run(decoder, prompts, adapters=chosen, block_size=16).run_whole()
    for prompt, name, logits in zip(prompts, chosen, together, strict=True):
        (alone,) = paged_run(decoder, [prompt], adapters=[name], block_size=16).run_whole()
        assert torch.equal(alone, logits)


@pytest.mark.parametrize("wanted", [[0], [2, 3, 4, 9], [11], [0, 1, 2, 5, 6, 7, 10, 11]])
def test_the_last_layer_adapts_wanted_rows_alone_to_the_same_bits(wanted, with_adapters, paged_run):
    decoder = with_adapters()
    seen = []
    forward = decoder.forward

    def both(*arguments: Any, **named: Any) -> torch.Tensor:
        everything = forward(*arguments, **named)
        seen.append(torch.equal(forward(*arguments, torch.tensor(wanted), **named), everything[wanted]))
        return everything

    decoder.forward = both
    paged_run(
        decoder, prompts_of(np.random.default_rng(2), [3, 4, 5]), adapters=["all", None, "gate and key"]
    ).run_whole()
    assert seen == [True]


def test_numbers_that_overflow_stay_in_their_row(with_adapters, paged_run):
    decoder = with_adapters()
    huge = LoraMatrices(torch.full((2, 40), 1e30), torch.full((52, 2), 1e30), 1.0)
    decoder.add_adapter("wild", LoraAdapter(({"up_proj": huge, "gate_proj": huge}, {})))
    prompts = prompts_of(np.random.default_rng(3), [3, 4, 5])
    calm = paged_run(decoder, prompts, adapters=["all", None, None]).run_whole()
    wild = paged_run(decoder, prompts, adapters=["all", "wild", None]).run_whole()
    assert torch.equal(calm[0], wild[0])
    assert torch.equal(calm[2], wild[2])
    assert not wild[1].isfinite().any()


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([0, 0, 5], IndexError, r"adapters\[2\] is 5, outside the adapters of 5"),
        ([0, -2, 0], IndexError, r"adapters\[1\] is -2"),
        ([0, 0], ValueError, "different lengths"),
        ([0.0, 0.0, 0.0], ValueError, "dtype"),
        ([[0, 0, 0]], ValueError, "dimensions"),
    ],
)
def test_adapters_that_do_not_exist_are_refused(rows, kind, message, with_adapters, paged_run):
    decoder = with_adapters()
    run = paged_run(decoder, [[1, 2, 3]])
    forward = decoder.forward
    decoder.forward = lambda *arguments, **_: forward(*arguments, adapters=torch.tensor(rows))
    with pytest.raises(kind, match=message):
        run.run_whole()


def test_matrices_that_do_not_fit_the_native_decoder_are_refused(reference):
    decoder = NativeCausalLM.from_reference(reference)
    good = LoraMatrices(torch.zeros(2, 40), torch.zeros(30, 2), 1.0)
    for bad in (
        LoraMatrices(torch.zeros(2, 41), torch.zeros(30, 2), 1.0),
        LoraMatrices(torch.zeros(2, 40), torch.zeros(31, 2), 1.0),
        LoraMatrices(torch.zeros(2, 40), torch.zeros(30, 3), 1.0),
    ):
        with pytest.raises(ValueError, match="qkv"):
            decoder.add_adapter("bad", LoraAdapter(({"q_proj": bad}, {})))
    assert decoder.adapters == {}
    decoder.add_adapter("good", LoraAdapter(({"q_proj": good}, {})))
    with pytest.raises(ValueError, match="no layer 2"):
        decoder.add_adapter("long", LoraAdapter(({}, {}, {"q_proj": good})))
    with pytest.raises(ValueError, match="overlap"):
        decoder._call("add_adapter_part", decoder.adapters["good"], 0, "qkv", 1, 0, 1, 1.0, 10, torch.zeros(1, 2, 16))
    decoder._call("set_adapter_input", decoder.adapters["good"], 0, "o", "float32", 3, 30, zeros(3, 30))
    for b, message in (
        (torch.zeros(3, 1, 16), "numbers"),
        (torch.zeros(3, 2, 16, dtype=torch.float16), "float32 or bfloat16"),
        (torch.zeros(3, 2, 32)[..., :16], "contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            decoder._call("add_adapter_part", decoder.adapters["good"], 0, "o", 0, 0, 1, 1.0, 40, b)
    place = (decoder.adapters["good"], 0, "o", 0, 1, 3)
    with pytest.raises(ValueError, match="beyond A"):
        decoder._call("add_adapter_part", *place, 1.0, 40, torch.zeros(3, 4, 16))
    with pytest.raises(ValueError, match="no adapter"):
        decoder._call("set_adapter_input", 99, 0, "qkv", "float32", 1, 40, zeros(1, 40))


def zeros(outputs: int, inputs: int) -> torch.Tensor:
    return pack(torch.zeros(outputs, inputs), "float32").weight
