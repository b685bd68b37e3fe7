"""Virtual token ids for prompts whose common beginnings a trace tells in its own way.

Ids that prompts may share are given out from 0 up; those of tokens that nobody shares, from `PRIVATE` up.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from looseleaf.replay.trace import Runs

PRIVATE = 3 << 29
END = 1 << 31


class Contradiction(Exception):
    """What a line says of its prompt cannot be; the text says why."""


class TokenIds:
    """Gives out the ids of one trace."""

    def __init__(self) -> None:
        self._next = 0
        self._next_private = PRIVATE
        self.way = ""
        """In which the lines so far told what is shared."""
        self._numbered: dict[Hashable, int] = {}

    def claim(self, way: str) -> None:
        """Say in which way a line tells what is shared. Raises `Contradiction` where one before told it in another:
        their ids could be taken for each other."""
        self.way = self.way or way
        if way != self.way:
            raise Contradiction(f"it has {way}, but lines before have {self.way}")

    def reserve(self, count: int) -> int:
        """The first of `count` new ids. Raises `Contradiction` when there are no more."""
        if self._next + count > PRIVATE:
            raise Contradiction(f"the trace has more than {PRIVATE:,} different tokens")
        first = self._next
        self._next += count
        return first

    def first_of(self, name: Hashable, count: int) -> int:
        """The first id of a piece of `count` tokens; the same for the same name. A name has always the same count."""
        first = self._numbered.get(name)
        if first is None:
            first = self._numbered[name] = self.reserve(count)
        return first

    def private(self, count: int) -> tuple[int, int]:
        """A run that no other prompt continues with: its first id is new. (The ids after it may be in use, but prompts
        that differ in a token have no beginning in common after it.)"""
        if self._next_private + count > END:
            self._next_private = PRIVATE
        self._next_private += 1
        return self._next_private - 1, count


def chain(ids: Iterable[tuple[int, int]], unit: int, prompt_tokens: int, tokens: TokenIds) -> Runs | None:
    """The runs of a prompt whose units of `unit` tokens are numbered: (first number, count of consecutive ones).

    The last unit may be a partial one, or left out: then its tokens share nothing. Raises `Contradiction` where the
    number of units does not go with the prompt's length.
    """
    runs = [(first * unit, count * unit) for first, count in merged(ids)]
    units = sum(length for _, length in runs) // unit
    if units == -(-prompt_tokens // unit):
        if over := units * unit - prompt_tokens:
            first, length = runs[-1]
            runs[-1] = first, length - over
    elif units == prompt_tokens // unit:
        runs.append(tokens.private(prompt_tokens - units * unit))
    else:
        raise Contradiction(
            f"{units:,} units of {unit} tokens are said of a prompt of {prompt_tokens:,}: "
            f"it has {prompt_tokens // unit:,}, or {-(-prompt_tokens // unit):,} with its partial one"
        )
    return tuple(runs) if units else None


def merged(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The same with consecutive runs made one."""
    first = length = 0
    for start, count in runs:
        if length and start == first + length:
            length += count
            continue
        if length:
            yield first, length
        first, length = start, count
    if length:
        yield first, length
