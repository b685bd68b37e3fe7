"""The KV cache tensors: their layout, and every read or write of them."""

from looseleaf.kernels.attention import paged_attention
from looseleaf.kernels.cpu import CpuKVCache
from looseleaf.kernels.factory import make_kv_cache
from looseleaf.kernels.interface import AttentionBatch, KVCache
from looseleaf.kernels.reference import ReferenceKVCache

__all__ = ["AttentionBatch", "CpuKVCache", "KVCache", "ReferenceKVCache", "make_kv_cache", "paged_attention"]
