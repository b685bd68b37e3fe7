"""Matrices kept as a GGUF file quantises them: the numbers are the file's, to the bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Encoding

from looseleaf.kernels import native
from looseleaf.models.decoder import CausalLM
from looseleaf.models.errors import UnsupportedModel
from looseleaf.models.gguf_config import config_from_gguf
from looseleaf.models.gguf_file import GGUFFile
from looseleaf.models.gguf_weights import GGUFWeights
from looseleaf.models.loader import load_decoder_and_tokenizer
from looseleaf.models.stored_weights import LAYER_MATRICES, StoredWeights
from tiny_model import write_tiny_folder

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the native extension is not built")

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 96, 4, 2, 16, 80
SHAPES = {
    "attn_q": (HEADS * HEAD_DIM, HIDDEN),
    "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD_DIM),
    "ffn_gate": (INTERMEDIATE, HIDDEN),
    "ffn_up": (INTERMEDIATE, HIDDEN),
    "ffn_down": (HIDDEN, INTERMEDIATE),
}


def write(path: Path, encodings: dict[str, Encoding], default: Encoding = Encoding.Q4_1) -> GGUFFile:
    """A random Llama of two layers; each matrix in the encoding of `encodings`, else in `default`."""
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    shapes = {"token_embd": (VOCAB, HIDDEN)}
    shapes |= {f"blk.{index}.{name}": shape for index in range(2) for name, shape in SHAPES.items()}
    for name, shape in shapes.items():
        encoding = encodings.get(name.split(".")[-1], default)
        weight = random.standard_normal(shape, np.float32)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(weight, encoding), raw_dtype=encoding)
    norms = ["output_norm", *(f"blk.{index}.{kind}_norm" for index in range(2) for kind in ("attn", "ffn"))]
    for name in norms:
        writer.add_tensor(f"{name}.weight", random.standard_normal(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path)


def decoded(source: GGUFWeights, names: tuple[str, ...]) -> torch.Tensor:
    """What the gguf package makes of the stored rows: float32, not rounded."""
    parts = []
    for name in names:
        blocks = source.stored_blocks((name,))
        parts.append(torch.from_numpy(gguf.quants.dequantize(blocks.rows.numpy(), Encoding[blocks.encoding])))
    return torch.cat(parts)


@pytest.mark.parametrize("encoding", [Encoding.Q8_0, Encoding.Q4_0, Encoding.Q4_1])
def test_packed_matrices_stand_for_exactly_the_files_numbers(encoding: Encoding, tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", {}, encoding)
    config = config_from_gguf(file)
    source = GGUFWeights(file, config)
    stored = StoredWeights(source, config)
    layer = CausalLM(config, torch.float32).layers[1]
    matrices = stored.layer_matrices(1)
    assert matrices == {
        matrix: tuple(f"model.layers.1.{name}" for name in names) for matrix, names in LAYER_MATRICES.items()
    }
    for matrix, packed in stored.pack_layer(matrices, layer).items():
        assert torch.equal(packed.dequantize(), decoded(source, matrices[matrix])), matrix
        assert packed.paired is (matrix == "gate_up")
        bits = packed.nbytes * 8 / (packed.out_features * packed.in_features)
        assert bits <= {Encoding.Q8_0: 8.5, Encoding.Q4_0: 4.5, Encoding.Q4_1: 5.0}[encoding]
    embedding = stored.pack_matrix("model.embed_tokens.weight")
    assert embedding is not None
    assert torch.equal(embedding.dequantize(), decoded(source, ("model.embed_tokens.weight",)))


def test_what_is_rounded_to_bfloat16_is_within_its_rounding(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", {})
    config = config_from_gguf(file)
    source = GGUFWeights(file, config)
    packed = StoredWeights(source, config).pack_matrix("model.embed_tokens.weight")
    rounded = torch.empty(VOCAB, HIDDEN)
    source.read_into("model.embed_tokens.weight", rounded)
    assert packed is not None
    exact = packed.dequantize()
    assert bool(((exact - rounded).abs() <= 2**-8 * exact.abs()).all())


def test_a_matrix_of_tensors_that_differ_is_left_to_be_decoded(tmp_path: Path) -> None:
    file = write(
        tmp_path / "model.gguf", {"attn_v": Encoding.Q8_0, "ffn_down": Encoding.Q5_1, "token_embd": Encoding.F16}
    )
    config = config_from_gguf(file)
    stored = StoredWeights(GGUFWeights(file, config), config)
    assert set(stored.layer_matrices(0)) == {"o", "gate_up"}
    assert stored.pack_matrix("model.embed_tokens.weight") is None


def test_a_file_with_nothing_to_keep_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "model.gguf", {}, Encoding.F16)
    config = config_from_gguf(file)
    with pytest.raises(UnsupportedModel, match=r"Q8_0, Q4_0, Q4_1, Q4_K, but no layer of this file .* has F16, F32"):
        StoredWeights(GGUFWeights(file, config), config)


@pytest.mark.parametrize("quantization", ["int8", "gguf"])
def test_without_the_native_kernels_nothing_is_quantised(
    quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(native.KERNELS_VARIABLE, "reference")
    write(tmp_path / "model.gguf", {})
    with pytest.raises(UnsupportedModel, match=f"quantization {quantization} needs the native kernels"):
        load_decoder_and_tokenizer(tmp_path / "model.gguf", torch.float32, quantization)


def test_a_folder_of_safetensors_has_no_blocks_to_keep(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "folder")
    with pytest.raises(UnsupportedModel, match="blocks of a GGUF file"):
        load_decoder_and_tokenizer(folder, torch.float32, "gguf")
