"""Models whose layers differ: in their heads, in how far they see, or in having attention at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from looseleaf.plan.decoders import CHUNKED, FULL, LINEAR, SLIDING, Basics
from looseleaf.plan.errors import InvalidModelShape, UnknownArchitecture
from looseleaf.plan.fields import ConfigFields
from looseleaf.plan.shape import (
    Attention,
    Dense,
    Experts,
    FeedForward,
    GatedDeltaNet,
    Layer,
    Mamba2,
    Mixer,
    ModelShape,
)


def gemma4(fields: ConfigFields) -> ModelShape:
    """Local and global layers of different heads; the last num_kv_shared_layers read the cache of earlier ones."""
    basics = Basics(fields, tied=True)
    local = replace(basics.attention(), head_norms=True)
    shared_values = fields.flag("attention_k_eq_v")
    full_dim = fields.integer("global_head_dim", default=512)
    full_heads = (
        fields.integer("num_global_key_value_heads", default=local.kv_heads) if shared_values else local.kv_heads
    )
    full = replace(local, kv_heads=full_heads, key_dim=full_dim, value_dim=full_dim, values_are_keys=shared_values)
    local = basics.window(local, fields.integer("sliding_window", default=512))
    if shared_values:
        basics.note("global layers project keys and values as one, but cache both: only keys are rotated")
    count, shared = basics.num_layers, fields.integer("num_kv_shared_layers", default=0, minimum=0)
    if shared:
        basics.note(f"the last {shared} layers read the keys and values of earlier ones, and keep none")
    pattern = [SLIDING if (index + 1) % 6 else FULL for index in range(count)]
    by_layer = fields.integer("hidden_size_per_layer_input", default=0, minimum=0)
    layers = []
    for index, kind in enumerate(basics.layer_types(pattern)):
        reads_earlier = index >= count - shared
        mixer = replace(local if kind == SLIDING else full, cached=not reads_earlier)
        wide = 2 if reads_earlier and fields.flag("use_double_wide_mlp") else 1
        dense = Dense(wide * fields.integer("intermediate_size"))
        layers.append(_gemma4_layer(fields, basics.hidden, mixer, dense, by_layer))
    if not by_layer:
        return basics.shape(layers)
    layers[0] = replace(layers[0], extra=layers[0].extra + by_layer)  # one norm for all of these embeddings
    shape = basics.shape(layers)
    rows = fields.integer("vocab_size_per_layer_input", default=shape.vocab)
    return replace(shape, extra_embedding=rows * count * by_layer)


def _gemma4_layer(fields: ConfigFields, hidden: int, mixer: Attention, dense: Dense, by_layer: int) -> Layer:
    part: FeedForward = dense
    norms, extra = 4, 0
    if fields.flag("enable_moe_block"):
        count = fields.integer("num_experts")
        part = Experts(
            count,
            fields.integer("top_k_experts"),
            fields.integer("moe_intermediate_size", "expert_intermediate_size"),
            shared=dense,  # a dense part beside the experts, which every token passes too
            extra=hidden + count,
        )
        norms = 7
    if by_layer:
        # The gate and the projection of the layer's own embedding, its norm, and its share of the model's projection.
        norms += 1
        extra = 3 * hidden * by_layer
    return Layer(mixer, part, norms, extra)


def llama4(fields: ConfigFields) -> ModelShape:
    """Three layers of chunked attention, then one full without rotation."""
    basics = Basics(fields)
    bias, count = fields.flag("attention_bias"), basics.num_layers
    full = replace(basics.attention(), qkv_bias=bias, out_bias=bias)
    chunk = fields.optional("attention_chunk_size")
    interval = fields.integer("no_rope_layer_interval", default=4)
    # The entry of a layer without rotation is 0.
    rotated = fields.values.get("no_rope_layers") or [(index + 1) % interval for index in range(count)]
    pattern = [CHUNKED if each and chunk else FULL for each in rotated]
    if len(pattern) != count:
        raise fields.wrong("no_rope_layers", f"a list of {len(pattern)}", f"a list of {count}")
    inner = fields.integer("intermediate_size")
    dense = Dense(fields.integer("intermediate_size_mlp", default=inner))
    experts = Experts(
        fields.integer("num_local_experts"), fields.integer("num_experts_per_tok"), inner, shared=Dense(inner)
    )
    step = fields.integer("interleave_moe_layer_step", default=1)
    mixed = fields.values.get("moe_layers") or range(step - 1, count, step)
    layers = [
        Layer(replace(full, chunk=chunk) if kind == CHUNKED else full, experts if index in mixed else dense)
        for index, kind in enumerate(basics.layer_types(pattern))
    ]
    return basics.shape(layers)


def qwen3_5(fields: ConfigFields) -> ModelShape:
    """Three layers of gated delta rule, then one of gated attention; dense, or with experts."""
    basics = Basics(fields)
    full = basics.attention(head_dim=fields.integer("head_dim", default=256))
    full = replace(full, head_norms=True, gated=fields.flag("attn_output_gate", default=True))
    linear = GatedDeltaNet(
        key_heads=fields.integer("linear_num_key_heads"),
        key_dim=fields.integer("linear_key_head_dim"),
        value_heads=fields.integer("linear_num_value_heads"),
        value_dim=fields.integer("linear_value_head_dim"),
        conv_kernel=fields.integer("linear_conv_kernel_dim"),
        state_dtype=_state_dtype(fields, "mamba_ssm_dtype"),
    )
    interval = fields.integer("full_attention_interval", default=4)
    kinds = basics.layer_types([LINEAR if (index + 1) % interval else FULL for index in range(basics.num_layers)])
    plain = fields.values.get("mlp_only_layers") or []
    step = fields.integer("decoder_sparse_step", default=1)
    experts = _qwen3_5_experts(fields)
    layers = []
    for index, kind in enumerate(kinds):
        mixer: Mixer = linear if kind == LINEAR else full
        mixes = experts is not None and index not in plain and (index + 1) % step == 0
        layers.append(Layer(mixer, experts if mixes else basics.dense()))
    return basics.shape(layers)


def _qwen3_5_experts(fields: ConfigFields) -> Experts | None:
    if not fields.has("num_experts"):
        return None
    return Experts(
        fields.integer("num_experts"),
        fields.integer("num_experts_per_tok"),
        fields.integer("moe_intermediate_size"),
        shared=Dense(fields.integer("shared_expert_intermediate_size")),
        shared_gate=True,
    )


def _state_dtype(fields: ConfigFields, key: str) -> str:
    """Of recurrent states: as the configuration says, else as the activations."""
    dtype = fields.text(key) or fields.text("dtype") or fields.text("torch_dtype") or "bfloat16"
    if dtype not in ("float32", "bfloat16", "float16"):
        raise fields.wrong(key, dtype, "float32, bfloat16 or float16")
    return dtype


def nemotron_h(fields: ConfigFields) -> ModelShape:
    """One part per layer, named by hybrid_override_pattern: M state space, * attention, E experts, - dense."""
    basics = Basics(fields)
    attention = replace(basics.attention(), qkv_bias=fields.flag("attention_bias"))
    _refuse(fields, "moe_latent_size", "experts in a latent space")
    mamba = Mamba2(
        heads=fields.integer("mamba_num_heads"),
        head_dim=fields.integer("mamba_head_dim"),
        state_dim=fields.integer("ssm_state_size"),
        groups=fields.integer("n_groups"),
        conv_kernel=fields.integer("conv_kernel"),
        conv_bias=fields.flag("use_conv_bias", default=True),
        bias=fields.flag("use_bias"),
        state_dtype=_state_dtype(fields, "mamba_ssm_cache_dtype"),
    )
    pattern, count = fields.text("hybrid_override_pattern"), basics.num_layers
    if len(pattern) != count or set(pattern) - set("M*E-"):
        raise fields.wrong("hybrid_override_pattern", pattern, f"{count} of the letters M, *, E and -")
    dense = Dense(fields.integer("intermediate_size"), gated=False, bias=fields.flag("mlp_bias"))
    parts: dict[str, Layer] = {
        "M": Layer(mamba, None, 1),
        "*": Layer(attention, None, 1),
        "-": Layer(None, dense, 1),
    }
    if "E" in pattern:
        shared = fields.integer("n_shared_experts", default=0, minimum=0)
        shared_inner = fields.integer("moe_shared_expert_intermediate_size", default=0, minimum=0) if shared else 0
        experts = Experts(
            fields.integer("n_routed_experts"),
            fields.integer("num_experts_per_tok"),
            fields.integer("moe_intermediate_size"),
            gated=False,
            router_bias=True,
            shared=Dense(shared_inner, gated=False) if shared_inner else None,
        )
        parts["E"] = Layer(None, experts, 1)
    return basics.shape([parts[letter] for letter in pattern])


def nemotron_nas(fields: ConfigFields) -> ModelShape:
    """A Llama whose blocks were thinned out one by one: block_configs says what each still has."""
    basics = Basics(fields)
    blocks = fields.sequence("block_configs", basics.num_layers)
    layers = [_nas_layer(fields, basics, block, index) for index, block in enumerate(blocks)]
    without = sum(layer.mixer is None for layer in layers)
    basics.note(f"{without} of {len(layers)} layers have no attention, and keep nothing")
    return basics.shape(layers)


def _nas_layer(fields: ConfigFields, basics: Basics, block: Any, index: int) -> Layer:
    attention, part = (block.get(key) if isinstance(block, Mapping) else None for key in ("attention", "ffn"))
    if not isinstance(attention, Mapping) or not isinstance(part, Mapping):
        raise fields.wrong(f"block_configs[{index}]", block, "an object with attention and ffn")
    names = ("window_length", "num_sink_tokens", "sparsify", "replace_with_linear", "unshifted_sink")
    for name in names:
        if attention.get(name):
            raise _not_known(fields, f"block_configs[{index}].attention.{name}", attention[name])
    for name in ("replace_with_linear", "sparsify"):
        if part.get(name):
            raise _not_known(fields, f"block_configs[{index}].ffn.{name}", part[name])
    mixer = None
    if not attention.get("no_op"):
        group = ConfigFields(fields.name, attention).integer("n_heads_in_group")
        mixer = basics.attention(kv_heads=max(basics.heads // group, 1))
    feed_forward = None
    if not part.get("no_op"):
        multiple = ConfigFields(fields.name, part).number("ffn_mult")
        feed_forward = Dense(-(-int(2 * multiple * basics.hidden / 3) // 256) * 256)
    return Layer(mixer, feed_forward, (mixer is not None) + (feed_forward is not None))


def mimo_v2_flash(fields: ConfigFields) -> ModelShape:
    """hybrid_layer_pattern: 1 for layers with a window, which have heads of their own."""
    basics = Basics(fields)
    bias = fields.flag("attention_bias")

    def attention(prefix: str, sinks: str) -> Attention:
        return Attention(
            fields.integer(f"{prefix}num_attention_heads"),
            fields.integer(f"{prefix}num_key_value_heads"),
            fields.integer(f"{prefix}head_dim"),
            fields.integer(f"{prefix}v_head_dim"),
            qkv_bias=bias,
            sinks=fields.flag(sinks),
        )

    full = attention("", "add_full_attention_sink_bias")
    local = basics.window(attention("swa_", "add_swa_attention_sink_bias"), fields.integer("sliding_window"))
    if fields.optional("attention_chunk_size") not in (None, local.window):
        raise InvalidModelShape(
            f"{fields.name} has sliding_window {local.window} and attention_chunk_size "
            f"{fields.values['attention_chunk_size']}.",
            hint="They must be the same.",
        )
    count = basics.num_layers
    experts = Experts(
        fields.integer("n_routed_experts"),
        fields.integer("num_experts_per_tok"),
        fields.integer("moe_intermediate_size"),
        router_bias=fields.text("topk_method") == "noaux_tc",
    )
    if fields.values.get("n_shared_experts"):
        raise _not_known(fields, "n_shared_experts", fields.values["n_shared_experts"])
    pairs = zip(fields.sequence("hybrid_layer_pattern", count), fields.sequence("moe_layer_freq", count), strict=True)
    return basics.shape(
        [Layer(local if windowed else full, experts if mixes else basics.dense()) for windowed, mixes in pairs]
    )


def _refuse(fields: ConfigFields, key: str, what: str) -> None:
    if fields.values.get(key):
        raise _not_known(fields, f"{key} ({what})", fields.values[key])


def _not_known(fields: ConfigFields, key: str, value: object) -> UnknownArchitecture:
    return UnknownArchitecture(
        f"{fields.name} has {key} = {str(value)[:40]}, which is not known here, so nothing is said about its memory.",
        hint="It would need what this keeps per token and per request, and its matrices.",
    )
