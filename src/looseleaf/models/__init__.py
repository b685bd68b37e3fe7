"""Weights, tokenizers and chat templates: everything a model folder or file holds."""
