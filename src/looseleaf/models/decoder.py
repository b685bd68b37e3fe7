"""The decoder all supported families share: RMS norm, rotary grouped-query attention, gated MLP."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn import functional

from looseleaf.kernels.interface import AttentionBatch, KVCache
from looseleaf.models.config import ModelConfig
from looseleaf.models.lora import LoraAdapter
from looseleaf.models.rope import RotaryTable, Rotation


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm over the last dimension (Zhang and Sennrich 2019, arXiv:1910.07467), computed in float32.

    Rounded to the model's dtype before the weight multiplies it, as transformers does.
    """
    return functional.rms_norm(x.float(), weight.shape, eps=eps).to(x.dtype).mul_(weight)


@dataclass(slots=True)
class DecoderLayer:
    """One layer's weights. Projections that read the same input are one matrix, so that they are one product."""

    input_norm: Tensor
    qkv_weight: Tensor
    """`[(num_heads + 2 · num_kv_heads) · head_dim, hidden]`: queries, keys, values."""
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o_weight: Tensor
    o_bias: Tensor | None
    post_attention_norm: Tensor
    gate_up_weight: Tensor
    """`[2 · intermediate, hidden]`: gate, up."""
    gate_up_bias: Tensor | None
    down_weight: Tensor
    down_bias: Tensor | None
    sliding_window: int | None


class CausalLM:
    """A model that reads token ids and the paged cache. For inference only: call it in `torch.inference_mode`.

    Built with uninitialised weights; `looseleaf.models.loader.load_model` fills them.
    """

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device | None = None) -> None:
        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self.config = config
        self.dtype = dtype
        self.adapters: dict[str, int] = {}
        self.max_lora_rank = 0
        self._adapters: list[LoraAdapter] = []
        self.embedding = empty(config.vocab_size, config.hidden_size)
        self.layers = [empty_layer(config, layer, dtype, device) for layer in range(config.num_layers)]
        self.norm = empty(config.hidden_size)
        self.lm_head = self.embedding if config.tie_word_embeddings else empty(config.vocab_size, config.hidden_size)
        self._rotary = RotaryTable(
            config.head_dim, config.max_position_embeddings, config.rope_theta, config.rope_scaling, dtype, device
        )
        self._scale = config.head_dim**-0.5

    def add_adapter(self, name: str, adapter: LoraAdapter) -> None:
        """See `Decoder.add_adapter`."""
        if name in self.adapters:
            raise ValueError(f"there is an adapter {name!r} already")
        self.adapters[name] = len(self._adapters)
        self.max_lora_rank = max(self.max_lora_rank, adapter.max_rank)
        self._adapters.append(adapter)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_cache: KVCache,
        batch: AttentionBatch,
        wanted: Tensor | None = None,
        adapters: Tensor | None = None,
    ) -> Tensor:
        """Run one step over `token_ids` (int64 `[T]`, all sequences one after another) at `positions` (int64 `[T]`).

        Writes the step's keys and values into `kv_cache` and returns hidden states after the final norm, `[R, hidden]`:
        those of the `wanted` rows (int64 `[R]`, ascending), by default of all. `adapters`: int64 `[T]`, a number of
        `self.adapters` or -1. Token ids, positions and adapters must be in range; the engine checks requests, not this
        loop.
        """
        eps = self.config.rms_norm_eps
        rotation = self._rotary.at(positions)
        hidden = functional.embedding(token_ids, self.embedding)
        for index, layer in enumerate(self.layers):
            normed = rms_norm(hidden, layer.input_norm, eps)
            hidden.add_(self._attention(index, layer, normed, rotation, kv_cache, batch, adapters))
            normed = rms_norm(hidden, layer.post_attention_norm, eps)
            hidden.add_(self._mlp(index, layer, normed, adapters))
        return rms_norm(hidden if wanted is None else hidden[wanted], self.norm, eps)

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, adapters included."""
        ends = {id(tensor): tensor for tensor in (self.embedding, self.norm, self.lm_head)}
        layers = (getattr(layer, field.name) for layer in self.layers for field in fields(layer))
        weights = sum(tensor.nbytes for tensor in (*ends.values(), *layers) if isinstance(tensor, Tensor))
        return weights + sum(adapter.nbytes for adapter in self._adapters)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of every vocabulary entry for each of `hidden`'s rows (`[R, hidden]`): float32 `[R, vocab]`."""
        return functional.linear(hidden, self.lm_head).float()

    def _attention(
        self,
        index: int,
        layer: DecoderLayer,
        normed: Tensor,
        rotation: Rotation,
        kv_cache: KVCache,
        batch: AttentionBatch,
        adapters: Tensor | None,
    ) -> Tensor:
        config = self.config
        num_heads, num_rotated = config.num_heads, config.num_heads + config.num_kv_heads
        qkv = functional.linear(normed, layer.qkv_weight, layer.qkv_bias)
        heads = qkv.view(normed.shape[0], -1, config.head_dim)
        for name, part in (
            ("q_proj", heads[:, :num_heads]),
            ("k_proj", heads[:, num_heads:num_rotated]),
            ("v_proj", heads[:, num_rotated:]),
        ):
            self._adapt(index, name, normed, part, adapters)
        rotated = heads[:, :num_rotated]
        if layer.q_norm is not None and layer.k_norm is not None:
            query = rms_norm(rotated[:, :num_heads], layer.q_norm, config.rms_norm_eps)
            key = rms_norm(rotated[:, num_heads:], layer.k_norm, config.rms_norm_eps)
            rotated = torch.cat((query, key), dim=1)
        rotated = rotation.apply(rotated)
        kv_cache.write(index, rotated[:, num_heads:], heads[:, num_rotated:], batch.slots)
        attended = kv_cache.attend(
            index, rotated[:, :num_heads], batch, scale=self._scale, sliding_window=layer.sliding_window
        )
        attended = attended.reshape(normed.shape[0], -1)
        out = functional.linear(attended, layer.o_weight, layer.o_bias)
        self._adapt(index, "o_proj", attended, out, adapters)
        return out

    def _mlp(self, index: int, layer: DecoderLayer, normed: Tensor, adapters: Tensor | None) -> Tensor:
        """SwiGLU (Shazeer 2020, arXiv:2002.05202)."""
        gate, up = functional.linear(normed, layer.gate_up_weight, layer.gate_up_bias).chunk(2, dim=-1)
        self._adapt(index, "gate_proj", normed, gate, adapters)
        self._adapt(index, "up_proj", normed, up, adapters)
        inner = functional.silu(gate).mul_(up)
        out = functional.linear(inner, layer.down_weight, layer.down_bias)
        self._adapt(index, "down_proj", inner, out, adapters)
        return out

    def _adapt(self, index: int, projection: str, x: Tensor, y: Tensor, adapters: Tensor | None) -> None:
        """Add to `y`, which is `x` times a matrix of layer `index`, what the rows' adapters make of `x`."""
        if adapters is None:
            return
        for number, adapter in enumerate(self._adapters):
            rows = (adapters == number).nonzero().flatten()
            matrices = adapter.layers[index].get(projection)
            if matrices is not None and len(rows):
                y[rows] += matrices.added(x[rows]).to(y.dtype).view(len(rows), *y.shape[1:])


def empty_layer(
    config: ModelConfig, index: int, dtype: torch.dtype, device: torch.device | None = None
) -> DecoderLayer:
    """Layer `index` of the model with uninitialised weights."""

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    hidden, intermediate, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    qkv = (config.num_heads + 2 * config.num_kv_heads) * head_dim
    return DecoderLayer(
        input_norm=empty(hidden),
        qkv_weight=empty(qkv, hidden),
        qkv_bias=empty(qkv) if config.qkv_bias else None,
        q_norm=empty(head_dim) if config.qk_norm else None,
        k_norm=empty(head_dim) if config.qk_norm else None,
        o_weight=empty(hidden, config.num_heads * head_dim),
        o_bias=empty(hidden) if config.attention_output_bias else None,
        post_attention_norm=empty(hidden),
        gate_up_weight=empty(2 * intermediate, hidden),
        gate_up_bias=empty(2 * intermediate) if config.mlp_bias else None,
        down_weight=empty(hidden, intermediate),
        down_bias=empty(hidden) if config.mlp_bias else None,
        sliding_window=config.sliding_windows[index],
    )
