"""A small random model with a byte-level tokenizer, and the slowest, plainest way to generate with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor

from looseleaf.engine.config import EngineConfig
from looseleaf.engine.engine import Engine
from looseleaf.engine.kv_pool import PoolSize
from looseleaf.kernels import native
from looseleaf.kernels.interface import AttentionBatch
from looseleaf.kernels.reference import ReferenceKVCache
from looseleaf.models.config import ModelConfig
from looseleaf.models.decoder import CausalLM
from looseleaf.models.interface import Decoder
from looseleaf.models.native_decoder import NativeCausalLM
from looseleaf.models.tokenizer import Tokenizer
from looseleaf.models.weights import destinations

EOS = "<|end|>"
LOADED: type[CausalLM] | type[NativeCausalLM] = NativeCausalLM if native.is_chosen() else CausalLM
"""What an engine's model is when it is loaded from a path."""
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def _tiny_backend() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(EOS, special=True, normalized=False)])
    return backend


def tiny_tokenizer() -> Tokenizer:
    """One token per byte, then the end-of-sequence token: text of any kind survives a round trip."""
    return Tokenizer(_tiny_backend(), special_tokens={"eos_token": EOS}, chat_templates={"default": CHAT_TEMPLATE})


def tiny_model(seed: int = 0, **changes: Any) -> CausalLM:
    """Two layers, four query heads on two key heads; weights large enough that logits differ clearly."""
    settings: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "vocab_size": 257,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "qkv_bias": False,
        "attention_output_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
        "sliding_windows": (None, None),
        "bos_token_id": None,
        "eos_token_ids": (256,),
    }
    model = CausalLM(ModelConfig(**(settings | changes)), torch.float32)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in destinations(model).items():
        if "norm" in name:
            weight.fill_(1.0)
        else:
            weight.normal_(0, 0.35, generator=generator)
    return model


def write_tiny_folder(folder: Path, model: CausalLM | None = None) -> Path:
    """The tiny model as a Hugging Face folder."""
    model = model or tiny_model()
    shape = model.config
    config = {
        "architectures": [shape.architecture],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tie_word_embeddings,
        "eos_token_id": list(shape.eos_token_ids),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: weight.contiguous() for name, weight in destinations(model).items()}, folder / "model.safetensors")
    _tiny_backend().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": EOS, "chat_template": CHAT_TEMPLATE}))
    return folder


def tiny_engine(
    model: Decoder,
    *,
    num_blocks: int = 256,
    block_size: int = 4,
    max_model_len: int = 96,
    tokenizer: Tokenizer | None = None,
    **settings: Any,
) -> Engine:
    config = EngineConfig.parse({"dtype": "float32", "block_size": block_size, "max_num_seqs": 8} | settings)
    shape = model.config
    pool = PoolSize(
        num_blocks,
        block_size,
        min(max_model_len, num_blocks * block_size),
        shape.num_layers,
        shape.num_kv_heads,
        shape.head_dim,
        config.torch_kv_dtype,
    )
    return Engine(model, tokenizer or tiny_tokenizer(), config, pool)


@torch.inference_mode()
def full_logits(model: CausalLM, token_ids: Sequence[int]) -> Tensor:
    """Logits after every position, from one pass over the whole sequence with a cache of its own."""
    length = len(token_ids)
    shape = model.config
    cache = ReferenceKVCache(
        num_layers=shape.num_layers,
        num_blocks=1,
        block_size=length,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=torch.float32,
    )
    position = torch.arange(length)
    batch = AttentionBatch(
        torch.zeros(1, 1, dtype=torch.int32),
        torch.tensor([length], dtype=torch.int32),
        torch.tensor([0, length], dtype=torch.int32),
        position,
        0,
    )
    return model.logits(model.forward(torch.tensor(list(token_ids)), position, cache, batch))


def generate_alone(
    model: CausalLM, prompt: Sequence[int], count: int, choose: Callable[[Tensor], int] = lambda row: int(row.argmax())
) -> list[int]:
    """Tokens of one prompt without batch, chunks or cache: the whole sequence anew for each token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(choose(full_logits(model, tokens)[-1]))
    return tokens[len(prompt) :]
