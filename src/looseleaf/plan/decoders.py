"""Models of softmax attention in every layer: full, or with a sliding window in some or all."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from looseleaf.plan.errors import InvalidModelShape
from looseleaf.plan.fields import ConfigFields
from looseleaf.plan.shape import Attention, Dense, Experts, FeedForward, Layer, ModelShape

SLIDING, FULL, CHUNKED, LINEAR = "sliding_attention", "full_attention", "chunked_attention", "linear_attention"

MOST_LAYERS = 1 << 12
"""Far above every published model: more is a damaged file, and must not become a list."""


@dataclass(slots=True)
class Basics:
    """What nearly every configuration names alike."""

    fields: ConfigFields
    tied: bool = False
    norm_bias: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def hidden(self) -> int:
        return self.fields.integer("hidden_size")

    @property
    def num_layers(self) -> int:
        count = self.fields.integer("num_hidden_layers", "n_layer")
        if count > MOST_LAYERS:
            raise self.fields.wrong("num_hidden_layers", count, f"at most {MOST_LAYERS:,}")
        return count

    @property
    def heads(self) -> int:
        return self.fields.integer("num_attention_heads", "n_head")

    def attention(self, *, kv_heads: int | None = None, head_dim: int | None = None) -> Attention:
        """Full attention; head_dim as given, as the configuration says, or hidden_size / heads."""
        heads = self.heads
        kv_heads = kv_heads or self.fields.integer("num_key_value_heads", default=heads)
        if heads % kv_heads:
            raise InvalidModelShape(
                f"{self.fields.name} has {heads} attention heads and {kv_heads} key-value heads.",
                hint="The first must be a multiple of the second.",
            )
        size = head_dim or self.fields.optional("head_dim")
        if size is None:
            if self.hidden % heads:
                raise InvalidModelShape(
                    f"{self.fields.name} has hidden_size {self.hidden} and {heads} attention heads.",
                    hint="Without head_dim, the first must be a multiple of the second.",
                )
            size = self.hidden // heads
        elif size * heads != self.hidden:
            self.notes.append(f"head size {size} is the configuration's, not hidden_size / heads")
        return Attention(heads, kv_heads, size, size)

    def dense(self, *, gated: bool = True, bias: bool = False) -> Dense:
        return Dense(self.fields.integer("intermediate_size"), gated, bias)

    def layer_types(self, default: list[str] | None = None) -> list[str]:
        """The kind of each layer: as listed, else `default`."""
        if not self.fields.has("layer_types") and default is not None:
            return default
        kinds = [str(each) for each in self.fields.sequence("layer_types", self.num_layers)]
        if unknown := sorted(set(kinds) - {SLIDING, FULL, CHUNKED, LINEAR}):
            raise InvalidModelShape(
                f"{self.fields.name} has layers of type {unknown[0]!r}.",
                hint="Known: sliding_attention, full_attention, chunked_attention, linear_attention.",
            )
        return kinds

    def window(self, mixer: Attention, window: int | None) -> Attention:
        """With a window, unless it is as long as the longest sequence: then it never cuts anything off."""
        if window is not None and window >= self.max_len:
            self.note(f"sliding_window {window:,} is not below the longest sequence, {self.max_len:,}: inert")
            window = None
        return replace(mixer, window=window)

    @property
    def max_len(self) -> int:
        return self.fields.integer("max_position_embeddings", default=2048)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def shape(self, layers: list[Layer], *, vocab: int | None = None) -> ModelShape:
        return ModelShape(
            name=self.fields.name,
            architecture="",
            hidden=self.hidden,
            vocab=vocab or self.fields.integer("vocab_size"),
            layers=tuple(layers),
            tied=self.fields.flag("tie_word_embeddings", self.tied),
            max_len=self.max_len,
            dtype="",
            norm_bias=self.norm_bias,
            notes=tuple(self.notes),
        )


def llama(fields: ConfigFields) -> ModelShape:
    basics = Basics(fields)
    bias = fields.flag("attention_bias")
    mixer = replace(basics.attention(), qkv_bias=bias, out_bias=bias)
    _inert_window(basics, "this architecture has none")
    return basics.shape([Layer(mixer, basics.dense(bias=fields.flag("mlp_bias")))] * basics.num_layers)


def mistral(fields: ConfigFields) -> ModelShape:
    """Every layer sees a window, unless it is null; a configuration that does not mention it means 4,096."""
    basics = Basics(fields)
    window = fields.optional("sliding_window") if "sliding_window" in fields.values else 4096
    mixer = basics.window(basics.attention(), window)
    kinds = basics.layer_types([SLIDING] * basics.num_layers)
    full = replace(mixer, window=None)
    return basics.shape([Layer(mixer if kind == SLIDING else full, basics.dense()) for kind in kinds])


def mixtral(fields: ConfigFields) -> ModelShape:
    basics = Basics(fields)
    mixer = basics.window(basics.attention(), fields.optional("sliding_window"))
    experts = Experts(
        fields.integer("num_local_experts"), fields.integer("num_experts_per_tok"), fields.integer("intermediate_size")
    )
    return basics.shape([Layer(mixer, experts)] * basics.num_layers)


def qwen2(fields: ConfigFields) -> ModelShape:
    basics = Basics(fields)
    mixer = replace(basics.attention(), qkv_bias=True)
    return basics.shape([Layer(each, basics.dense()) for each in _qwen_windows(basics, mixer)])


def qwen3(fields: ConfigFields) -> ModelShape:
    basics = Basics(fields)
    return basics.shape([Layer(each, basics.dense()) for each in _qwen_windows(basics, _qwen3_attention(basics))])


def qwen3_moe(fields: ConfigFields) -> ModelShape:
    basics = Basics(fields)
    experts = Experts(
        fields.integer("num_experts"), fields.integer("num_experts_per_tok"), fields.integer("moe_intermediate_size")
    )
    step = fields.integer("decoder_sparse_step", default=1)
    plain = fields.values.get("mlp_only_layers") or []
    mixers = _qwen_windows(basics, _qwen3_attention(basics))
    layers = [
        Layer(mixer, basics.dense() if index in plain or (index + 1) % step else experts)
        for index, mixer in enumerate(mixers)
    ]
    return basics.shape(layers)


def _qwen3_attention(basics: Basics) -> Attention:
    bias = basics.fields.flag("attention_bias")
    return replace(
        basics.attention(head_dim=basics.fields.integer("head_dim", default=128)),
        head_norms=True,
        qkv_bias=bias,
        out_bias=bias,
    )


def _qwen_windows(basics: Basics, mixer: Attention) -> list[Attention]:
    """Windows from layer max_window_layers on, if they are switched on at all."""
    fields, count = basics.fields, basics.num_layers
    window = fields.optional("sliding_window")
    if not fields.flag("use_sliding_window") or window is None:
        _inert_window(basics, "use_sliding_window is false")
        return [mixer] * count
    first = fields.integer("max_window_layers", default=28, minimum=0)
    kinds = basics.layer_types([SLIDING if index >= first else FULL for index in range(count)])
    return [basics.window(mixer, window) if kind == SLIDING else mixer for kind in kinds]


def _inert_window(basics: Basics, why: str) -> None:
    if window := basics.fields.values.get("sliding_window"):
        basics.note(f"sliding_window {window:,} is inert: {why}")


def phi3(fields: ConfigFields) -> ModelShape:
    basics = Basics(fields)
    mixer = basics.window(basics.attention(), fields.optional("sliding_window"))
    return basics.shape([Layer(mixer, basics.dense())] * basics.num_layers)


def falcon(fields: ConfigFields) -> ModelShape:
    """Multi-query, unless new_decoder_architecture (then num_kv_heads) or multi_query is false (then full)."""
    basics = Basics(fields, tied=True, norm_bias=True)
    new, bias = fields.flag("new_decoder_architecture"), fields.flag("bias")
    heads = basics.heads
    if new:
        kv_heads = fields.integer("num_kv_heads", "n_head_kv", default=heads)
    else:
        kv_heads = 1 if fields.flag("multi_query", default=True) else heads
    mixer = replace(basics.attention(kv_heads=kv_heads), qkv_bias=bias, out_bias=bias)
    norms = (
        fields.integer("num_ln_in_parallel_attn", default=2 if new else 1)
        if new or fields.flag("parallel_attn", default=True)
        else 2
    )
    inner = fields.integer("ffn_hidden_size", default=4 * basics.hidden)
    return basics.shape([Layer(mixer, Dense(inner, gated=False, bias=bias), norms)] * basics.num_layers)


def opt(fields: ConfigFields) -> ModelShape:
    """Full attention, learned positions (two more than max_position_embeddings), a bias everywhere."""
    basics = Basics(fields, tied=True, norm_bias=True)
    if fields.integer("word_embed_proj_dim", default=basics.hidden) != basics.hidden:
        raise fields.wrong("word_embed_proj_dim", fields.values["word_embed_proj_dim"], "hidden_size")
    bias = fields.flag("enable_bias", default=True)
    mixer = replace(basics.attention(kv_heads=basics.heads), qkv_bias=bias, out_bias=bias)
    part = Dense(fields.integer("ffn_dim"), gated=False, bias=bias)
    shape = basics.shape([Layer(mixer, part)] * basics.num_layers)
    return replace(shape, extra_embedding=(basics.max_len + 2) * basics.hidden)


def starcoder2(fields: ConfigFields) -> ModelShape:
    basics = Basics(fields, tied=True, norm_bias=True)
    bias = fields.flag("use_bias", default=True)
    mixer = replace(basics.attention(), qkv_bias=bias, out_bias=bias)
    mixer = basics.window(mixer, fields.optional("sliding_window"))
    return basics.shape([Layer(mixer, basics.dense(gated=False, bias=bias))] * basics.num_layers)


def gemma(fields: ConfigFields) -> ModelShape:
    basics = Basics(fields, tied=True)
    mixer = basics.attention(head_dim=fields.integer("head_dim", default=256))
    return basics.shape([Layer(mixer, basics.dense())] * basics.num_layers)


def gemma2(fields: ConfigFields) -> ModelShape:
    """Every second layer, from the first on, sees a window."""
    basics = Basics(fields, tied=True)
    full = basics.attention(head_dim=fields.integer("head_dim", default=256))
    window = basics.window(full, fields.integer("sliding_window", default=4096))
    kinds = basics.layer_types([FULL if index % 2 else SLIDING for index in range(basics.num_layers)])
    return basics.shape([Layer(window if kind == SLIDING else full, basics.dense(), norms=4) for kind in kinds])


GEMMA3_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
"""What published configurations of Gemma 3 leave out, as the architecture's own configuration class has it."""


def gemma3(fields: ConfigFields) -> ModelShape:
    """Five layers with a window, then one without."""
    missing = [key for key in GEMMA3_DEFAULTS if not fields.has(key)]
    fields = ConfigFields(fields.name, {**GEMMA3_DEFAULTS, **{k: v for k, v in fields.values.items() if v is not None}})
    basics = Basics(fields, tied=True)
    if missing:
        basics.note(f"as the architecture's own defaults: {', '.join(missing)}")
    full = replace(basics.attention(), head_norms=True)
    window = basics.window(full, fields.integer("sliding_window"))
    pattern = fields.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    kinds = basics.layer_types([SLIDING if (index + 1) % pattern else FULL for index in range(basics.num_layers)])
    return basics.shape([Layer(window if kind == SLIDING else full, basics.dense(), norms=4) for kind in kinds])


def gpt_oss(fields: ConfigFields) -> ModelShape:
    basics = Basics(fields)
    bias = fields.flag("attention_bias", default=True)
    full = replace(
        basics.attention(head_dim=fields.integer("head_dim", default=64)), qkv_bias=bias, out_bias=bias, sinks=True
    )
    window = basics.window(full, fields.integer("sliding_window", default=128))
    experts: FeedForward = Experts(
        fields.integer("num_local_experts"),
        fields.integer("num_experts_per_tok", "experts_per_token"),
        fields.integer("intermediate_size"),
        bias=True,
        router_bias=True,
    )
    kinds = basics.layer_types([FULL if index % 2 else SLIDING for index in range(basics.num_layers)])
    return basics.shape([Layer(window if kind == SLIDING else full, experts) for kind in kinds])
