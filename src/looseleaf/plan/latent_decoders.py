"""Models of multi-head latent attention: DeepSeek V2, V3 and V3.2, Kimi K2."""

from __future__ import annotations

from looseleaf.plan.decoders import Basics
from looseleaf.plan.fields import ConfigFields
from looseleaf.plan.shape import Dense, Experts, Indexer, LatentAttention, Layer, ModelShape


def deepseek(fields: ConfigFields) -> ModelShape:
    basics = Basics(fields)
    indexer = None
    if fields.values.get("model_type") == "deepseek_v32":
        indexer = Indexer(
            fields.integer("index_n_heads"), fields.integer("index_head_dim"), fields.integer("index_topk")
        )
        basics.note("a decode step reads the latents of index_topk tokens, and the index keys of all")
    mixer = LatentAttention(
        heads=basics.heads,
        query_rank=fields.optional("q_lora_rank"),
        latent_dim=fields.integer("kv_lora_rank"),
        rope_dim=fields.integer("qk_rope_head_dim"),
        nope_dim=fields.integer("qk_nope_head_dim"),
        value_dim=fields.integer("v_head_dim"),
        indexer=indexer,
    )
    basics.note("num_key_value_heads says nothing here: a token leaves one latent and one rotated key per layer")
    dense, experts = basics.dense(), _experts(fields)
    first = fields.integer("first_k_dense_replace", default=0, minimum=0)
    every = fields.integer("moe_layer_freq", default=1)
    layers = [
        Layer(mixer, experts if experts is not None and index >= first and index % every == 0 else dense)
        for index in range(basics.num_layers)
    ]
    return basics.shape(layers)


def _experts(fields: ConfigFields) -> Experts | None:
    if not fields.has("n_routed_experts"):
        return None
    inner = fields.integer("moe_intermediate_size")
    shared = fields.integer("n_shared_experts", default=0, minimum=0)
    return Experts(
        fields.integer("n_routed_experts"),
        fields.integer("num_experts_per_tok"),
        inner,
        router_bias=fields.text("topk_method") == "noaux_tc",
        shared=Dense(shared * inner) if shared else None,
    )
