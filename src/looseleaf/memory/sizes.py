"""Checks of the numbers that callers hand in, before anything is changed."""

from __future__ import annotations

import numpy as np

from looseleaf.errors import ConfigurationError
from looseleaf.memory.errors import InvalidSize
from looseleaf.memory.interface import ROW_MASK

INT32_MAX = 2**31 - 1


def checked_count(name: str, value: object, *, minimum: int = 1, maximum: int = INT32_MAX) -> int:
    """`value` as an int within the bounds, or `InvalidSize`."""
    if type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise InvalidSize(f"{name} is {value!r}.", hint="It must be a whole number.")
        value = int(value)
    if not minimum <= value <= maximum:
        raise InvalidSize(f"{name} is {value}.", hint=f"It must be between {minimum} and {maximum}.")
    return value


def checked_geometry(num_blocks: int, block_size: int, max_num_seqs: int, max_blocks_per_seq: int) -> None:
    """Raise `ConfigurationError` unless a pool of this shape can exist and its numbers fit into int32."""
    limits = {
        "num_blocks": INT32_MAX,
        "block_size": INT32_MAX,
        "max_num_seqs": ROW_MASK,
        "max_blocks_per_seq": INT32_MAX,
    }
    values = (num_blocks, block_size, max_num_seqs, max_blocks_per_seq)
    for (name, limit), value in zip(limits.items(), values, strict=True):
        try:
            checked_count(name, value, maximum=limit)
        except InvalidSize as error:
            raise ConfigurationError(error.message, hint=error.hint) from None
    if max_blocks_per_seq * block_size > INT32_MAX:
        raise ConfigurationError(
            f"A sequence of {max_blocks_per_seq} blocks of {block_size} tokens is longer than {INT32_MAX} tokens.",
            hint="Lower max_blocks_per_seq.",
        )
