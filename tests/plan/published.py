"""What each published configuration keeps, derived by hand from the architecture's description, in bfloat16 unless the
checkpoint says else. Layers × (heads × numbers of keys and values) × bytes; the comments say where a trap is."""

from __future__ import annotations

from typing import NamedTuple


class Kept(NamedTuple):
    """Bytes: of a token while windows fill, of a token of a long context, and of the states of one request."""

    at_first: int
    slope: int
    states: int = 0


def full(layers: int, kv_heads: int, head: int, element: int = 2) -> Kept:
    """Keys and values of equal size in every layer."""
    nbytes = layers * 2 * kv_heads * head * element
    return Kept(nbytes, nbytes)


# latent 512 and rotated key 64, once per layer, whatever the number of heads
LATENT = 512 + 64

KEPT = {
    "Qwen--Qwen3-0.6B": full(28, 8, 128),  # head 128, not 1024 / 16 = 64
    "Qwen--Qwen3-235B-A22B": full(94, 4, 128),  # not 4096 / 64 = 64
    "Qwen--Qwen3-30B-A3B": full(48, 4, 128),
    "Qwen--Qwen3-32B": full(64, 8, 128),  # not 5120 / 64 = 80
    "Qwen--Qwen3-8B": full(36, 8, 128),
    # Every fourth of 64 layers attends: 16. A state: 48 value heads of 128 × 128 in float32; the convolution of width
    # 4 keeps 3 inputs of 2 × 16 × 128 + 48 × 128 channels.
    "Qwen--Qwen3.5-27B": full(16, 4, 256)._replace(states=48 * (48 * 128 * 128 * 4 + 3 * (4096 + 6144) * 2)),
    "Qwen--Qwen3.5-35B-A3B": full(10, 2, 256)._replace(states=30 * (32 * 128 * 128 * 4 + 3 * (4096 + 4096) * 2)),
    # 9 layers see everything with 4 heads, 39 see 128 tokens with 8; keys of 192, values of 128.
    "XiaomiMiMo--MiMo-V2-Flash": Kept(9 * 4 * 320 * 2 + 39 * 8 * 320 * 2, 9 * 4 * 320 * 2),
    "codellama-34b-instruct-hf": full(48, 8, 128),
    # A key of 128 for the indexer in 8 bits, and its float32 scale.
    "deepseek-ai--DeepSeek-V3.2": Kept(61 * (LATENT * 2 + 128 + 4), 61 * (LATENT * 2 + 128 + 4)),
    "deepseek-ai--DeepSeek-V3": Kept(61 * LATENT * 2, 61 * LATENT * 2),
    "deepseek-v2-lite": Kept(27 * LATENT * 2, 27 * LATENT * 2),
    # 25 local layers: 8 heads of 256; 5 global ones: 2 heads of 512. Both cache keys and values.
    "google--gemma-4-26B-A4B": Kept(25 * 2 * 8 * 256 * 2 + 5 * 2 * 2 * 512 * 2, 5 * 2 * 2 * 512 * 2),
    "llama-2-7b-hf": full(32, 32, 128),
    # Three of four layers attend within chunks of 8,192.
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": full(48, 8, 128)._replace(slope=12 * 2 * 8 * 128 * 2),
    "meta-llama--Meta-Llama-3.1-405B": full(126, 8, 128),
    "meta-llama--Meta-Llama-3.1-70B": full(80, 8, 128),
    "meta-llama--Meta-Llama-3.1-8B": full(32, 8, 128),
    "mistral-nemo-instruct-2407": full(40, 8, 128),  # not 5120 / 32 = 160
    "mistralai--Mixtral-8x7B-v0.1": full(32, 8, 128),
    "moonshotai--Kimi-K2-Instruct": Kept(61 * LATENT * 2, 61 * LATENT * 2),
    # 50 local layers: 16 heads of 256; 10 global ones: 4 of 512; the checkpoint asks for an 8-bit cache.
    "nvidia--Gemma-4-31B-IT-NVFP4": Kept(50 * 2 * 16 * 256 + 10 * 2 * 4 * 512, 10 * 2 * 4 * 512),
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": full(49, 64 // 8, 128),  # 31 of 80 layers have no attention
    # 6 of 52 layers attend, 23 are state spaces: 64 heads of 64 × 128 in float32, 3 inputs of 4096 + 2 × 8 × 128.
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": full(6, 2, 128)._replace(
        states=23 * (64 * 64 * 128 * 4 + 3 * 6144 * 2)
    ),
    "openai--gpt-oss-120b": full(36, 8, 64)._replace(slope=18 * 2 * 8 * 64 * 2),
    "openai--gpt-oss-20b": full(24, 8, 64)._replace(slope=12 * 2 * 8 * 64 * 2),
    "qwen2.5-7b-instruct": full(28, 4, 128),  # sliding_window is switched off
    "qwen3-14b": full(40, 8, 128),
    "yi-34b": full(60, 8, 128),
}

PARAMETERS = {
    "meta-llama--Meta-Llama-3.1-8B": 8_030_261_248,
    "meta-llama--Meta-Llama-3.1-70B": 70_553_706_496,
    "meta-llama--Meta-Llama-3.1-405B": 405_853_388_800,
    "llama-2-7b-hf": 6_738_415_616,
    "qwen2.5-7b-instruct": 7_615_616_512,
    "Qwen--Qwen3-0.6B": 596_049_920,
    "Qwen--Qwen3-8B": 8_190_735_360,
    "Qwen--Qwen3-30B-A3B": 30_532_122_624,
    "Qwen--Qwen3-235B-A22B": 235_093_634_560,
    "mistralai--Mixtral-8x7B-v0.1": 46_702_792_704,
    "mistral-nemo-instruct-2407": 12_247_782_400,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-ai--DeepSeek-V3": 671_026_419_200,
    "openai--gpt-oss-20b": 20_914_757_184,
    "openai--gpt-oss-120b": 116_829_156_672,
    "nvidia--Llama-3_3-Nemotron-Super-49B-v1": 49_867_145_216,
    "yi-34b": 34_388_917_248,
}
"""Counts that the publishers give, or that the published weights have."""
