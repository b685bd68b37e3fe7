"""The KV cache tensors: their layout, and every read or write of them."""
