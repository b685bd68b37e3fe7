"""Why a model cannot be used. Whoever raises one has built nothing."""

from __future__ import annotations

from looseleaf.errors import ModelError


class ModelNotFound(ModelError):
    """The path does not exist, or holds nothing that is a model."""


class CorruptModelFile(ModelError):
    """A file of the model is truncated, or is not what its name says."""


class InvalidModelConfig(ModelError):
    """The configuration is incomplete, or its numbers make no sense together."""


class UnsupportedModel(ModelError):
    """The model needs something that is not implemented here; the message names it."""


class WeightsMismatch(ModelError):
    """The weights are not those that the configuration describes."""


class AdapterError(ModelError):
    """An adapter cannot be used with this model."""


class UnsupportedAdapter(AdapterError):
    """The adapter needs something that is not implemented here; the message names it."""


class InvalidAdapter(AdapterError):
    """The adapter's configuration makes no sense, or its tensors are not those that it and the model describe."""
