"""Real prompts as virtual token ids: a radix tree in which equal beginnings lie on the same path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from looseleaf.replay.readers.token_ids import TokenIds, merged
from looseleaf.replay.trace import Runs


@dataclass(slots=True, eq=False)
class _Node:
    tokens: NDArray[np.int32]
    """What this node adds to its parent's text."""
    first: int
    """Virtual id of the first; the others follow."""
    children: dict[int, _Node] = field(default_factory=dict)


class PromptTree:
    """Holds every prompt it has seen, each token that prompts have in common once."""

    def __init__(self, ids: TokenIds) -> None:
        self._ids = ids
        self._root = _Node(np.empty(0, np.int32), 0)

    def runs(self, tokens: Sequence[int]) -> Runs:
        """The runs of a prompt: equal to those of an earlier one as far as the tokens are. Raises `Contradiction`."""
        rest = np.asarray(tokens, np.int32)
        node, runs = self._root, []
        while len(rest):
            child = node.children.get(int(rest[0]))
            if child is None:
                child = node.children[int(rest[0])] = _Node(rest, self._ids.reserve(len(rest)))
            length = min(len(rest), len(child.tokens))
            differing = np.flatnonzero(rest[:length] != child.tokens[:length])
            common = int(differing[0]) if len(differing) else length
            if common < len(child.tokens):
                tail = _Node(child.tokens[common:], child.first + common, child.children)
                child.tokens, child.children = child.tokens[:common], {int(tail.tokens[0]): tail}
            runs.append((child.first, common))
            node, rest = child, rest[common:]
        return tuple(merged(runs))
