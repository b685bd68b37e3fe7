"""Checks of the numbers that callers hand in, before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

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


def checked_setting(name: str, value: object, *, maximum: int = INT32_MAX) -> int:
    """`value` as an int from 1 to `maximum`, or `ConfigurationError`."""
    try:
        return checked_count(name, value, maximum=maximum)
    except InvalidSize as error:
        raise ConfigurationError(error.message, hint=error.hint) from None


class Geometry(NamedTuple):
    """The shape of a pool and of its block tables."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_blocks_per_seq: int


def checked_geometry(
    num_blocks: object, block_size: object, max_num_seqs: object, max_blocks_per_seq: object | None
) -> Geometry:
    """The shape in Python's ints, which do not overflow; a row without a limit addresses the whole pool.

    Raises `ConfigurationError` unless a pool of this shape can exist and its numbers fit into int32.
    """
    blocks = checked_setting("num_blocks", num_blocks)
    size = checked_setting("block_size", block_size)
    rows = checked_setting("max_num_seqs", max_num_seqs, maximum=ROW_MASK)
    if max_blocks_per_seq is None:
        return Geometry(blocks, size, rows, min(blocks, INT32_MAX // size))
    width = checked_setting("max_blocks_per_seq", max_blocks_per_seq)
    if width * size > INT32_MAX:
        raise ConfigurationError(
            f"A sequence of {width} blocks of {size} tokens is longer than {INT32_MAX} tokens.",
            hint="Lower max_blocks_per_seq.",
        )
    return Geometry(blocks, size, rows, width)


@contextmanager
def books_of(what: str) -> Iterator[None]:
    """Turn NumPy's refusal to allocate `what` into `ConfigurationError`."""
    try:
        yield
    except MemoryError as error:
        raise ConfigurationError(
            f"The host has no memory for {what}: {error}",
            hint="Lower num_blocks, max_num_seqs or max_blocks_per_seq.",
        ) from error
