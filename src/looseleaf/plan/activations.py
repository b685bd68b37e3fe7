"""The memory that one step works in, beside weights and cache: at its peak, by formula."""

from __future__ import annotations

from dataclasses import dataclass

from looseleaf.plan.arithmetic import DTYPE_BYTES, ModelArithmetic
from looseleaf.plan.shape import Attention, Dense, Experts, FeedForward, GatedDeltaNet, LatentAttention, Mamba2, Mixer

FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class ActivationPeak:
    """The larger of two moments: inside a layer, and sampling. In bytes, with the formula of the larger."""

    nbytes: int
    formula: str


def activation_peak(arithmetic: ModelArithmetic, step_tokens: int, max_num_seqs: int, *, wide: bool) -> ActivationPeak:
    """Of a step over `step_tokens` tokens after which `max_num_seqs` next tokens are drawn.

    `wide`: activations are float32 whatever the weights are (Looseleaf's kernels on processors). What is counted: the
    residual, a layer's input and its normed copy, and the widest product of one layer with what it is made from; or
    the last hidden states, and for each token drawn its logits, their float32 copy and the probabilities. (vLLM's own
    profiles of Llama-3.1-8B over 20,000 and 29,000 tokens: 2.07 and 2.99 GiB; this: 2.06 and 2.99.)
    """
    shape = arithmetic.shape
    element = FLOAT32 if wide else DTYPE_BYTES[arithmetic.dtype]
    widest = 0
    for layer in set(shape.layers):
        if layer.mixer is not None:
            widest = max(widest, _mixer_width(layer.mixer))
        if layer.feed_forward is not None:
            widest = max(widest, _feed_forward_width(layer.feed_forward, shape.hidden))
    inside = step_tokens * (3 * shape.hidden + widest) * element
    sampling = step_tokens * shape.hidden * element + max_num_seqs * shape.vocab * (element + 2 * FLOAT32)
    if inside >= sampling:
        formula = f"{step_tokens:,} tokens × (3 × {shape.hidden:,} + {widest:,} of the widest layer) × {element} B"
        return ActivationPeak(inside, formula)
    formula = (
        f"{step_tokens:,} tokens × {shape.hidden:,} × {element} B + {max_num_seqs:,} sequences × "
        f"{shape.vocab:,} logits × {element + 2 * FLOAT32} B"
    )
    return ActivationPeak(sampling, formula)


def _mixer_width(mixer: Mixer) -> int:
    """Numbers per token of projections and result."""
    match mixer:
        case Attention():
            queries = mixer.heads * mixer.key_dim * (2 if mixer.gated else 1)
            return queries + mixer.kv_heads * (mixer.key_dim + mixer.value_dim) + mixer.heads * mixer.value_dim
        case LatentAttention():
            queries = mixer.heads * (mixer.nope_dim + mixer.rope_dim)
            expanded = mixer.heads * (mixer.nope_dim + mixer.rope_dim + mixer.value_dim)
            return (mixer.query_rank or 0) + queries + mixer.cached_dim + expanded + mixer.heads * mixer.value_dim
        case GatedDeltaNet():
            return 2 * mixer.conv_channels + 2 * mixer.value_heads * mixer.value_dim
        case Mamba2():
            return 2 * mixer.conv_channels + 2 * mixer.inner


def _feed_forward_width(part: FeedForward, hidden: int) -> int:
    """Numbers per token of the inner products, and of their combination; experts also give a result each."""
    match part:
        case Dense():
            return part.inner * (3 if part.gated else 2)
        case Experts():
            return part.active * (part.inner * (3 if part.gated else 2) + hidden)
