"""The native decoder against the readable one, and what no batch, chunk or thread may change: not one bit."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from looseleaf.kernels import native
from looseleaf.kernels.cpu import CpuKVCache
from looseleaf.kernels.interface import AttentionBatch
from looseleaf.kernels.reference import ReferenceKVCache
from looseleaf.models.decoder import CausalLM
from looseleaf.models.loader import load_decoder_and_tokenizer, load_model
from looseleaf.models.native_decoder import NativeCausalLM, fits_bfloat16
from native_case import threads
from tiny_model import tiny_model

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the native extension was not built")

WINDOWED: dict[str, Any] = {"qk_norm": True, "qkv_bias": True, "sliding_windows": (None, 3)}


class Step:
    """One step of a tiny model: sequences of whole prompts, block after block, in a cache of their own."""

    def __init__(self, model: CausalLM, prompts: list[list[int]], block_size: int = 4) -> None:
        blocks = [-(-len(prompt) // block_size) for prompt in prompts]
        first = np.cumsum([0, *blocks])
        self.cache_sizes = {
            "num_layers": model.config.num_layers,
            "num_blocks": int(first[-1]),
            "block_size": block_size,
            "num_kv_heads": model.config.num_kv_heads,
            "head_dim": model.config.head_dim,
            "dtype": torch.float32,
        }
        self.cache = CpuKVCache(**self.cache_sizes)
        self.token_ids = torch.tensor([token for prompt in prompts for token in prompt])
        self.positions = torch.tensor([position for prompt in prompts for position in range(len(prompt))])
        tables = torch.zeros(len(prompts), max(blocks), dtype=torch.int32)
        for i, count in enumerate(blocks):
            tables[i, :count] = torch.arange(int(first[i]), int(first[i]) + count)
        owner = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor([len(p) for p in prompts]))
        slots = tables[owner, self.positions // block_size].long() * block_size + self.positions % block_size
        lens = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int32)
        starts = torch.cat((torch.zeros(1, dtype=torch.int32), lens.cumsum(0, dtype=torch.int32)))
        self.batch = AttentionBatch(tables, lens, starts, slots, 0)

    def run(self, model: Any, wanted: Tensor | None = None, cache: Any = None, **changes: Tensor) -> Tensor:
        """Hidden states. `changes`: token_ids, positions, or a field of the batch, in place of the good ones."""
        given = {"token_ids": self.token_ids, "positions": self.positions} | changes
        names = ("block_tables", "context_lens", "query_starts", "slots")
        batch = AttentionBatch(*(changes.get(name, getattr(self.batch, name)) for name in names), 0)
        with torch.inference_mode():
            return model.forward(given["token_ids"], given["positions"], cache or self.cache, batch, wanted)


def test_it_is_as_exact_as_the_reference(family, checkpoint, paged_run, sequences):
    """Errors against transformers in float64, root mean square; sums are formed in other orders, so they differ."""
    reference, _ = load_model(checkpoint(family).folder, torch.float32)
    decoder = NativeCausalLM.from_reference(reference)
    oracle = copy.deepcopy(checkpoint(family).oracle).double()
    generator = np.random.default_rng(11)
    with torch.inference_mode():
        exact = torch.cat([oracle(torch.tensor([tokens])).logits[0] for tokens in sequences])
    plain = torch.cat(paged_run(reference, sequences, block_size=3).run_in_pieces(np.random.default_rng(11)))
    fast = torch.cat(paged_run(decoder, sequences, block_size=3).run_in_pieces(generator))
    torch.testing.assert_close(fast.double(), exact, rtol=0, atol=1e-4)
    assert (fast - exact).square().mean() <= 2 * (plain - exact).square().mean()


@given(seed=st.integers(0, 2**32 - 1), block_size=st.integers(1, 17))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("name", ["llama3", "mistral", "qwen3", "llama-biases"])
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_company_chunks_blocks_and_threads_do_not_change_a_bit(
    name, quantization, seed, block_size, checkpoint, paged_run
):
    reference, _ = load_model(checkpoint(name).folder, torch.float32)
    decoder = NativeCausalLM.from_reference(reference, quantization)
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 40, size=generator.integers(1, 5))
    prompts = [generator.integers(0, 96, length).tolist() for length in lengths]
    with threads(1):
        alone = [paged_run(decoder, [prompt], block_size=16).run_whole()[0] for prompt in prompts]
    with threads(2):
        together = paged_run(decoder, prompts, block_size=block_size, seed=seed % 1000).run_in_pieces(generator)
    assert all(map(torch.equal, alone, together))


@pytest.mark.parametrize("isa", native.available_isas())
@pytest.mark.parametrize("wanted", [[], [0], [17], [2, 3, 4, 8, 11, 12, 17], list(range(18))])
def test_the_last_layer_computes_wanted_rows_alone_to_the_same_bits(isa, wanted):
    reference = tiny_model(**WINDOWED)
    decoder = NativeCausalLM.from_reference(reference)
    step = Step(reference, [[5, 9, 100], [7, 3, 8, 1, 1], [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]])
    rows = torch.tensor(wanted, dtype=torch.int64)
    with native.use_isa(isa):
        everything = step.run(decoder)
        stored = step.cache.storage.clone()
        step.cache.storage.zero_()
        assert torch.equal(step.run(decoder, rows), everything[rows])
    assert torch.equal(step.cache.storage, stored)
    plain = step.run(reference, rows, cache=ReferenceKVCache(**step.cache_sizes))
    torch.testing.assert_close(everything[rows], plain, rtol=1e-4, atol=1e-4)


def test_not_a_number_stays_in_its_sequence():
    reference = tiny_model(**WINDOWED)
    step = Step(reference, [[5, 9, 100], [7, 3, 8, 1, 1], [2, 4, 6]])
    expected = step.run(NativeCausalLM.from_reference(reference))
    reference.embedding[8] = torch.tensor([torch.nan, torch.inf] * 16)
    found = step.run(NativeCausalLM.from_reference(reference))
    assert torch.equal(found[:5], expected[:5])
    assert torch.equal(found[8:], expected[8:])
    assert found[5:8].isnan().all()


def test_weights_take_two_bytes_where_that_loses_nothing():
    sizes = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 1024}
    wide = tiny_model(**sizes)
    narrow = tiny_model(**sizes)
    for layer in narrow.layers:
        for name in ("qkv_weight", "o_weight", "gate_up_weight", "down_weight"):
            getattr(layer, name).copy_(getattr(layer, name).bfloat16())
    narrow.embedding.copy_(narrow.embedding.bfloat16())
    narrow.lm_head.copy_(narrow.lm_head.bfloat16())
    assert not fits_bfloat16(wide.embedding)
    assert fits_bfloat16(narrow.embedding)
    step = Step(narrow, [[5, 9, 100, 3]])
    kept = NativeCausalLM.from_reference(narrow)
    assert kept.nbytes < 0.51 * NativeCausalLM.from_reference(wide).nbytes
    plain = step.run(narrow, cache=ReferenceKVCache(**step.cache_sizes))
    # AVX-512 BF16 and AMX multiply bfloat16 by bfloat16: activations are rounded there.
    with native.use_isa("avx2" if "avx2" in native.available_isas() else "portable"):
        torch.testing.assert_close(step.run(kept), plain, rtol=1e-5, atol=1e-5)


def test_int8_weights_are_smaller_and_close():
    reference = tiny_model(hidden_size=128, intermediate_size=256)
    step = Step(reference, [[5, 9, 100, 3]])
    exact, rounded = NativeCausalLM.from_reference(reference), NativeCausalLM.from_reference(reference, "int8")
    assert rounded.nbytes < 0.5 * exact.nbytes
    error = step.run(rounded) - step.run(exact)
    assert 0 < error.square().mean().sqrt() < 0.05  # of hidden states whose mean square is 1


def test_a_loaded_model_is_the_reference_packed(checkpoint, paged_run, sequences, monkeypatch):
    folder = checkpoint("qwen3-untied").folder
    monkeypatch.setattr("looseleaf.models.loader.Tokenizer.from_folder", lambda _: None)
    for dtype in (torch.float32, torch.bfloat16):
        loaded, _ = load_decoder_and_tokenizer(folder, dtype)
        reference, _ = load_model(folder, dtype)
        packed = NativeCausalLM.from_reference(reference)
        assert isinstance(loaded, NativeCausalLM)
        assert loaded.nbytes == packed.nbytes
        run = (paged_run(model, sequences).run_whole() for model in (loaded, packed))
        assert all(map(torch.equal, *run))
        monkeypatch.setenv("LOOSELEAF_KERNELS", "reference")
        assert isinstance(load_decoder_and_tokenizer(folder, dtype)[0], CausalLM)
        monkeypatch.delenv("LOOSELEAF_KERNELS")


def replaced(tensor: Tensor, index: Any, value: int) -> Tensor:
    changed = tensor.clone()
    changed[index] = value
    return changed


BAD: dict[str, tuple[type[Exception], str, Callable[[Step], dict[str, Tensor]]]] = {
    "token": (IndexError, "token_ids", lambda s: {"token_ids": replaced(s.token_ids, 3, 257)}),
    "negative token": (IndexError, "token_ids", lambda s: {"token_ids": replaced(s.token_ids, 3, -1)}),
    "position": (IndexError, "position", lambda s: {"positions": replaced(s.positions, 0, -1)}),
    "far position": (IndexError, "position", lambda s: {"positions": replaced(s.positions, 0, 5000)}),
    "slot": (IndexError, "slot", lambda s: {"slots": replaced(s.batch.slots, 2, 12)}),
    "negative slot": (IndexError, "slot", lambda s: {"slots": replaced(s.batch.slots, 2, -1)}),
    "block": (IndexError, "block", lambda s: {"block_tables": replaced(s.batch.block_tables, (1, 1), 3)}),
    "negative block": (IndexError, "block", lambda s: {"block_tables": replaced(s.batch.block_tables, (1, 1), -1)}),
    "length": (IndexError, "blocks", lambda s: {"context_lens": replaced(s.batch.context_lens, 1, 9)}),
    "no length": (ValueError, "context", lambda s: {"context_lens": replaced(s.batch.context_lens, 1, 0)}),
    "starts": (ValueError, "query_starts", lambda s: {"query_starts": replaced(s.batch.query_starts, 1, 9)}),
    "end": (ValueError, "query_starts", lambda s: {"query_starts": replaced(s.batch.query_starts, 2, 7)}),
    "row": (IndexError, "wanted", lambda _: {"wanted": torch.tensor([1, 8])}),
    "row twice": (ValueError, "ascend", lambda _: {"wanted": torch.tensor([1, 1])}),
    "no tokens": (ValueError, "tokens", lambda s: {"token_ids": s.token_ids[:0]}),
    "fewer positions": (ValueError, "length", lambda s: {"positions": s.positions[:-1]}),
    "dtype": (ValueError, "dtype", lambda s: {"token_ids": s.token_ids.int()}),
    "stride": (ValueError, "contiguous", lambda s: {"slots": s.batch.slots.repeat_interleave(2)[::2]}),
    "shape": (ValueError, "dimension", lambda s: {"context_lens": s.batch.context_lens[None]}),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_refused_before_anything_is_written(name):
    reference = tiny_model()
    decoder = NativeCausalLM.from_reference(reference)
    step = Step(reference, [[5, 9, 100], [7, 3, 8, 1, 1]])
    kind, message, change = BAD[name]
    before = step.cache.storage.clone()
    with pytest.raises(kind, match=message) as refusal:
        step.run(decoder, **change(step))
    assert ".cpp" not in str(refusal.value)
    assert torch.equal(step.cache.storage, before)


def test_a_cache_of_another_shape_or_kind_is_refused():
    reference = tiny_model()
    decoder = NativeCausalLM.from_reference(reference)
    step = Step(reference, [[5, 9, 100]])
    with pytest.raises(TypeError, match="ReferenceKVCache"):
        step.run(decoder, cache=ReferenceKVCache(**step.cache_sizes))
    for change in ({"num_layers": 1}, {"head_dim": 32}, {"num_kv_heads": 1}):
        with pytest.raises(ValueError, match="cache"):
            step.run(decoder, cache=CpuKVCache(**(step.cache_sizes | change)))


def test_hidden_states_of_another_shape_or_dtype_are_refused():
    decoder = NativeCausalLM.from_reference(tiny_model())
    assert decoder.logits(torch.empty(0, 32)).shape == (0, 257)
    for hidden in (torch.zeros(2, 31), torch.zeros(32), torch.zeros(2, 32, dtype=torch.float64)):
        with pytest.raises(ValueError, match="hidden"):
            decoder.logits(hidden)


def test_a_decoder_that_lacks_weights_does_not_run():
    reference = tiny_model()
    decoder = NativeCausalLM(reference.config, torch.float32)
    with pytest.raises(ValueError, match="lacks"):
        Step(reference, [[5]]).run(decoder)
    other = tiny_model(hidden_size=64)
    with pytest.raises(ValueError, match="norm"):
        decoder.set_layer(0, other.layers[0])


def test_a_decoder_whose_heads_no_kernel_has_room_for_is_refused():
    with pytest.raises(RuntimeError, match="head_dim must be from 1 to 256"):
        torch.ops.looseleaf.decoder_create(16, 32, 16, 1, 1, 258, 1e-5, [0])


def test_native_memory_goes_with_the_decoder():
    decoder = NativeCausalLM.from_reference(tiny_model())
    handle = decoder._handle
    assert torch.ops.looseleaf.decoder_scratch_bytes(handle) == 0
    del decoder
    gc.collect()
    with pytest.raises(RuntimeError, match="no decoder"):
        torch.ops.looseleaf.decoder_scratch_bytes(handle)
