"""GGUF files: read like the reference reader, worth the same as the folder they were made from, never trusted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Encoding
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from looseleaf.errors import ModelError
from looseleaf.models.decoder import CausalLM
from looseleaf.models.errors import (
    CorruptModelFile,
    InvalidModelConfig,
    ModelNotFound,
    UnsupportedModel,
    WeightsMismatch,
)
from looseleaf.models.gguf_config import config_from_gguf
from looseleaf.models.gguf_file import GGUFFile
from looseleaf.models.gguf_weights import GGUFWeights
from looseleaf.models.loader import load_config, load_decoder_and_tokenizer, load_model
from looseleaf.models.tokenizer import Tokenizer
from looseleaf.models.weights import destinations

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
QUANTISED = [Encoding.Q4_0, Encoding.Q4_1, Encoding.Q5_0, Encoding.Q5_1, Encoding.Q8_0]


def rotary_order(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """The order of query and key rows that llama.cpp's converter gives to Llama files."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    oracle: PreTrainedModel,
    path: Path,
    encoding: Encoding = Encoding.F32,
    *,
    metadata: dict[str, Any] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    raw: dict[str, Encoding] | None = None,
    alignment: int | None = None,
) -> Path:
    """What llama.cpp's converter would make of `oracle`; matrices in `encoding`, vectors in F32.

    `metadata` overrides keys (None leaves one out), `extra` adds tensors, `raw` stores a tensor as zero bytes
    of an encoding that the package cannot produce.
    """
    config = oracle.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, architecture)
    if alignment:
        writer.add_custom_alignment(alignment)
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "vocab_size": config.vocab_size,
    }
    if getattr(config, "head_dim", None):
        keys |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
        keys |= {"rope.dimension_count": config.head_dim}
    everything = {f"{architecture}.{key}": value for key, value in keys.items()}
    everything |= {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, **(metadata or {})}
    for key, value in everything.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in oracle.named_parameters():
        weight = parameter.detach().numpy()
        module, suffix = name.rsplit(".", 1)
        if architecture == "llama" and module.rsplit(".", 1)[-1] in heads:
            weight = rotary_order(weight, heads[module.rsplit(".", 1)[-1]])
        if module.startswith("model.layers."):
            _, _, index, rest = module.split(".", 3)
            stored_name = f"blk.{index}.{NAMES[rest]}.{suffix}"
        else:
            stored_name = f"{NAMES[module]}.{suffix}"
        if stored_name in (raw or {}):
            values, size = gguf.GGML_QUANT_SIZES[raw[stored_name]]
            rows, width = weight.shape
            data = np.zeros((rows, width // values * size), np.uint8)
            writer.add_tensor(stored_name, data, raw_dtype=raw[stored_name])
            continue
        kind = encoding if weight.ndim == 2 else Encoding.F32
        writer.add_tensor(stored_name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    for name, weight in (extra or {}).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def write(checkpoint, tmp_path) -> Callable[..., Path]:
    def write_family(family: str, *arguments: Any, **options: Any) -> Path:
        return write_gguf(checkpoint(family).oracle, tmp_path / "model.gguf", *arguments, **options)

    return write_family


def load(path: Path) -> CausalLM:
    return load_model(path, torch.float32)[0]


ROUND_TRIPS = ["llama2", "smollm2", "llama-biases", "mistral-nemo", "qwen2", "qwen3", "qwen3-untied"]


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_an_unquantised_file_is_worth_the_same_as_the_folder(name, write, checkpoint, paged_run, sequences):
    model = load(write(name))
    in_folder = destinations(load(checkpoint(name).folder))
    in_file = destinations(model)
    assert in_file.keys() == in_folder.keys()
    assert all(torch.equal(in_file[key], in_folder[key]) for key in in_file)
    for tokens, logits in zip(sequences, paged_run(model, sequences).run_whole(), strict=True):
        torch.testing.assert_close(logits, checkpoint(name).logits(tokens), rtol=0, atol=1e-4)


@pytest.mark.parametrize("encoding", [Encoding.F16, Encoding.BF16])
def test_half_precision_values_are_kept_as_stored(encoding, write, checkpoint):
    loaded = destinations(load(write("llama3", encoding)))
    dtype = {Encoding.F16: torch.float16, Encoding.BF16: torch.bfloat16}[encoding]
    for name, parameter in checkpoint("llama3").oracle.named_parameters():
        expected = parameter.to(dtype).float() if parameter.ndim == 2 else parameter
        assert torch.equal(loaded[name], expected), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("encoding", QUANTISED)
@pytest.mark.parametrize("name", ["llama3", "qwen2"])
def test_quantised_values_are_decoded_to_bfloat16_whatever_dtype_is_asked_for(name, encoding, dtype, write, checkpoint):
    loaded = destinations(load_model(write(name, encoding), dtype)[0])
    for key, parameter in checkpoint(name).oracle.named_parameters():
        expected = parameter.detach()
        if expected.ndim == 2:
            stored = gguf.quants.quantize(expected.numpy(), encoding)
            expected = torch.from_numpy(gguf.quants.dequantize(stored, encoding)).bfloat16()
        assert torch.equal(loaded[key], expected.to(dtype)), key


@pytest.mark.parametrize("encoding", [Encoding.Q4_1, Encoding.Q8_0])
@pytest.mark.parametrize("name", ["llama3", "qwen2"])  # of these, only llama's rows lie in another order
def test_stored_blocks_are_the_rows_that_are_decoded(name, encoding, write):
    file = GGUFFile(write(name, encoding))
    source = GGUFWeights(file, config_from_gguf(file))
    names = [f"model.layers.1.self_attn.{letter}_proj.weight" for letter in "qkv"]
    blocks = source.stored_blocks(names)
    assert blocks.encoding == encoding.name == source.encoding(names[0])
    rows = torch.from_numpy(gguf.quants.dequantize(blocks.rows.numpy(), encoding)).bfloat16()
    first = 0
    for tensor in names:
        expected = torch.empty(source.shapes()[tensor], dtype=torch.bfloat16)
        source.read_into(tensor, expected)
        assert torch.equal(rows[first : first + len(expected)], expected)
        first += len(expected)
    assert (first, blocks.columns) == tuple(rows.shape)


def test_divisors_in_the_file_stand_for_llama3_scaling(write, checkpoint, paged_run, sequences):
    scaling = load_config(checkpoint("llama3").folder).rope_scaling
    assert scaling is not None
    stretched = scaling.frequencies(16, 500.0)
    plain = 1.0 / 500.0 ** (torch.arange(0, 16, 2) / 16)
    model = load(write("llama3", extra={"rope_freqs.weight": (plain / stretched).numpy()}))
    for tokens, logits in zip(sequences, paged_run(model, sequences).run_whole(), strict=True):
        torch.testing.assert_close(logits, checkpoint("llama3").logits(tokens), rtol=0, atol=1e-4)


def test_yarn_in_the_file_is_read(write, checkpoint):
    path = write(
        "qwen2-yarn",
        metadata={
            "qwen2.rope.scaling.type": "yarn",
            "qwen2.rope.scaling.factor": 4.0,
            "qwen2.rope.scaling.original_context_length": 32,
        },
    )
    assert load_config(path).rope_scaling == load_config(checkpoint("qwen2-yarn").folder).rope_scaling


def test_a_folder_with_one_file_is_that_file_and_with_two_is_ambiguous(write, tmp_path):
    path = write("smollm2")
    assert load_config(tmp_path) == load_config(path)
    (tmp_path / "second.gguf").write_bytes(path.read_bytes())
    with pytest.raises(ModelNotFound, match=r"2 GGUF files: model\.gguf, second\.gguf"):
        load_config(tmp_path)


TOKENS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [*(chr(33 + index) for index in range(88)), *"ĠĊ¡¢£¤", "ab", "cd"],
    "tokenizer.ggml.token_type": [1, 3, 3, *[1] * 93],
    "tokenizer.ggml.merges": ["a b", "c d"],
    "tokenizer.chat_template": "{{ messages[0]['content'] }}",
}


def test_ends_of_turns_and_messages_end_a_sequence_for_model_and_tokenizer_alike(write):
    ends = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 2}
    path = write("smollm2", metadata=TOKENS | ends)
    assert load_config(path).eos_token_ids == Tokenizer.from_gguf(path).eos_token_ids == (2, 5)


def test_one_call_loads_the_model_and_its_tokenizer(write, checkpoint, monkeypatch):
    monkeypatch.setenv("LOOSELEAF_KERNELS", "reference")
    path = write("smollm2", metadata=TOKENS)
    model, tokenizer = load_decoder_and_tokenizer(path, torch.float32)
    alone = destinations(load(path))
    assert all(torch.equal(weight, alone[name]) for name, weight in destinations(model).items())
    assert tokenizer.encode("abba") == Tokenizer.from_gguf(path).encode("abba")
    folder = checkpoint("smollm2").folder
    with pytest.raises(ModelNotFound, match=r"no tokenizer\.json"):
        load_decoder_and_tokenizer(folder, torch.float32)
    with pytest.raises(UnsupportedModel, match="float16"):
        load_decoder_and_tokenizer(path, torch.float16)


def test_a_folder_whose_only_weights_are_a_file_is_that_file(write, checkpoint, tmp_path):
    path = write("smollm2")
    (tmp_path / "config.json").write_text("{}")
    assert load_config(tmp_path) == load_config(path)
    (tmp_path / "second.gguf").write_bytes(path.read_bytes())
    with pytest.raises(ModelNotFound, match="2 GGUF files"):
        load_config(tmp_path)
    for file in checkpoint("qwen3").folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert load_config(tmp_path).architecture == "Qwen3ForCausalLM"


def test_a_sliding_window_in_the_file_holds_for_every_layer(write, checkpoint, paged_run, sequences):
    path = write("mistral", metadata={"llama.attention.sliding_window": 5})
    assert load_config(path).sliding_windows == load_config(checkpoint("mistral").folder).sliding_windows == (5, 5, 5)
    for tokens, logits in zip(sequences, paged_run(load(path), sequences).run_whole(), strict=True):
        torch.testing.assert_close(logits, checkpoint("mistral").logits(tokens), rtol=0, atol=1e-4)


def assert_reads_like_the_reference(path: Path) -> None:
    ours, reference = GGUFFile(path), gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reference.fields.items() if not key.startswith("GGUF.")}
    assert ours.metadata == fields
    assert list(ours.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        found = ours.tensors[tensor.name]
        assert found.shape == tuple(tensor.shape.tolist()[::-1])
        assert found.encoding == tensor.tensor_type
        assert found.data.tobytes() == tensor.data.tobytes()


@pytest.mark.parametrize("encoding", [Encoding.F32, Encoding.F16, *QUANTISED])
def test_metadata_and_tensors_are_those_that_the_reference_reader_finds(encoding, write):
    assert_reads_like_the_reference(
        write(
            "qwen3",
            encoding,
            metadata={
                "tokenizer.ggml.tokens": ["a", "", "Ġé", "漢字", "\x00"],
                "tokenizer.ggml.token_type": [1, 2, 3, 4, 5],
                "tokenizer.ggml.scores": [0.5, -1.5, 0.0],
                "general.flags": [True, False],
            },
            alignment=64,
        )
    )


_METADATA_VALUES = (
    st.text(max_size=20)
    | st.integers(0, 2**32 - 1)
    | st.floats(width=32, allow_nan=False)
    | st.lists(st.text(max_size=5), min_size=1, max_size=5)
    | st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5)
)


@given(metadata=st.dictionaries(st.text(st.characters(codec="ascii"), min_size=1, max_size=9), _METADATA_VALUES))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_metadata_is_what_the_reference_reader_finds(metadata, write):
    assert_reads_like_the_reference(write("smollm2", metadata={f"x.{key}": value for key, value in metadata.items()}))


@pytest.mark.parametrize("family_name", ["smollm2", "qwen3-untied"])
def test_a_file_cut_anywhere_is_refused(family_name, write):
    path = write(family_name, Encoding.Q8_0, metadata=TOKENS)
    content = path.read_bytes()
    end = max(tensor.data_offset + tensor.n_bytes for tensor in gguf.GGUFReader(path).tensors)
    cuts = [*range(200), *range(200, end, max(1, end // 300)), end - 1]
    for cut in cuts:
        path.write_bytes(content[:cut])
        with pytest.raises(CorruptModelFile):
            load(path)
        with pytest.raises(CorruptModelFile):
            Tokenizer.from_gguf(path)
    path.write_bytes(content[:end])
    assert isinstance(load(path), CausalLM)


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_bytes_in_the_header_are_read_or_refused(data, checkpoint, tmp_path):
    whole = tmp_path / "whole.gguf"
    if not whole.exists():
        write_gguf(checkpoint("smollm2").oracle, whole, metadata=TOKENS)
    content = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 5000))] = data.draw(st.integers(0, 255))
    path = tmp_path / "changed.gguf"
    path.unlink(missing_ok=True)  # the last example's file may still be mapped
    path.write_bytes(content)
    for read, result in ((load, CausalLM), (Tokenizer.from_gguf, Tokenizer)):
        with suppress(ModelError):
            assert isinstance(read(path), result)


@pytest.mark.parametrize("count", [2**63, 2**40, 10**6])
def test_an_array_that_claims_more_than_the_file_holds_is_refused_at_once(count, write):
    path = write("smollm2", metadata={"tokenizer.ggml.token_type": [7, 7, 7]})
    content = path.read_bytes()
    honest = (3).to_bytes(8, "little") + (7).to_bytes(4, "little") * 3
    assert content.count(honest) == 1
    path.write_bytes(content.replace(honest, count.to_bytes(8, "little") + honest[8:]))
    with pytest.raises(CorruptModelFile, match="truncated"):
        load(path)


@pytest.mark.parametrize("content", [b"", b"GG", b"GGML" + bytes(100), b"GGUF" + bytes(4)])
def test_what_is_no_gguf_file_is_refused(content, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.gguf"):
        load(path)


def test_an_unknown_architecture_is_refused_by_name_with_the_known_ones(write):
    path = write("smollm2")
    named = [len(name).to_bytes(8, "little") + name for name in (b"llama", b"gemma2")]
    path.write_bytes(path.read_bytes().replace(*named, 1))
    with pytest.raises(UnsupportedModel, match=r"'gemma2'.*llama, qwen2, qwen3"):
        load(path)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"llama.expert_count": 8}, "8 experts"),
        ({"llama.rope.dimension_count": 8}, "8 of 16"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "longrope"),
        ({"llama.attention.key_length": 16, "llama.attention.value_length": 32}, "different width"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.attn_factor": 1.5}, "attention factor"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(metadata, named, write):
    with pytest.raises(UnsupportedModel, match=named):
        load(write("smollm2", metadata=metadata))


@pytest.mark.parametrize("encoding", [Encoding.Q8_1, Encoding.I8])
def test_an_encoding_that_cannot_be_decoded_is_refused_by_name(encoding, write):
    with pytest.raises(UnsupportedModel, match=encoding.name):
        load(write("smollm2", raw={"blk.1.ffn_up.weight": encoding}))


@pytest.mark.parametrize(
    ("metadata", "error", "named"),
    [
        ({"llama.embedding_length": 128}, WeightsMismatch, "model.embed_tokens.weight is"),
        ({"llama.block_count": 4}, WeightsMismatch, "missing: model.layers.3."),
        ({"llama.block_count": 2}, WeightsMismatch, "unexpected: model.layers.2."),
        ({"llama.attention.head_count": 0}, InvalidModelConfig, "num_attention_heads is 0"),
        ({"llama.attention.head_count": [4, 4, 4]}, InvalidModelConfig, "num_attention_heads"),
        ({"llama.block_count": None}, InvalidModelConfig, "num_hidden_layers"),
    ],
)
def test_metadata_that_lies_is_refused(metadata, error, named, write):
    with pytest.raises(error, match=named):
        load(write("smollm2", metadata=metadata))


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"tokenizer.ggml.eos_token_id": [2, 5]}, "eos_token_id is a list of int"),
        ({"tokenizer.ggml.eot_token_id": "two"}, "eot_token_id is the str 'two'"),
        ({"tokenizer.ggml.tokens": 7}, "tokens is the int 7"),
        ({"tokenizer.ggml.token_type": 1}, "token_type is the int 1"),
        ({"tokenizer.chat_template": 7}, "chat_template is the int 7"),
        ({"tokenizer.ggml.eom_token_id": 96}, r"end tokens \[96\] are outside its 96 tokens"),
    ],
)
def test_tokenizer_metadata_of_a_wrong_type_is_refused(metadata, named, write):
    with pytest.raises(CorruptModelFile, match=named):
        Tokenizer.from_gguf(write("smollm2", metadata=TOKENS | metadata))


def test_an_unexpected_tensor_is_named(write):
    with pytest.raises(WeightsMismatch, match=r"unexpected: blk\.0\.attn_sinks\.weight"):
        load(write("smollm2", extra={"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}))


@pytest.mark.parametrize("divisors", [np.zeros(8), np.full(8, np.nan), np.ones(7)])
def test_rotary_divisors_that_make_no_sense_are_refused(divisors, write):
    with pytest.raises(InvalidModelConfig, match="rope_freqs"):
        load(write("smollm2", extra={"rope_freqs.weight": divisors.astype(np.float32)}))
