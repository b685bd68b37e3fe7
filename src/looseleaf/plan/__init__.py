"""What fits: KV bytes, weights and work of a model, from its configuration alone. No tensors, no engine."""
