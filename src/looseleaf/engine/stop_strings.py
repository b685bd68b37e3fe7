"""Finding stop strings in text that arrives in pieces, without ever releasing a part of one.

The result does not depend on how the text is cut into pieces: the match is the stop string that is complete
first, reading character by character (the longest, if several end at the same character).
"""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Node:
    """A prefix of some stop string."""

    children: dict[str, _Node] = field(default_factory=dict)
    fallback: _Node | None = None
    """The longest proper suffix of this prefix that is itself a prefix of some stop string."""
    held: int = 0
    """Length of the longest suffix that may still become a stop string."""
    match: str | None = None
    """The longest stop string that ends here."""


@functools.lru_cache(maxsize=16)  # for the samples of a request and its like; the largest takes megabytes
def _automaton(stop_strings: tuple[str, ...]) -> _Node:
    """Aho and Corasick, "Efficient string matching", 1975: one state per character, whatever the strings."""
    root = _Node()
    for string in stop_strings:
        node = root
        for character in string:
            node = node.children.setdefault(character, _Node())
        node.match = string
    queue = deque([(root, 0)])
    while queue:
        node, depth = queue.popleft()
        node.held = depth if node.children else (node.fallback.held if node.fallback else 0)
        if node.match is None and node.fallback is not None:
            node.match = node.fallback.match
        for character, child in node.children.items():
            child.fallback = root if node is root else _step(root, node.fallback or root, character)
            queue.append((child, depth + 1))
    return root


def _step(root: _Node, node: _Node, character: str) -> _Node:
    while character not in node.children:
        if node.fallback is None:
            return root
        node = node.fallback
    return node.children[character]


class StopStrings:
    """Watches one output. `push` text as it comes; what it returns may be shown."""

    __slots__ = ("_include", "_node", "_pending", "_root", "matched")

    def __init__(self, stop_strings: tuple[str, ...], *, include_in_output: bool = False) -> None:
        self._root = self._node = _automaton(stop_strings)
        self._include = include_in_output
        self._pending = ""
        self.matched: str | None = None
        """The stop string that was found; nothing is released after it."""

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """Text that is now certain to be no part of a stop string (or, at a match, all that belongs before it).

        `may_stop=False`: a stop string that ends within this `text` is ordinary text.
        """
        if self.matched is not None:
            return ""
        node, root = self._node, self._root
        available = self._pending + text
        for position, character in enumerate(text, len(self._pending) + 1):
            node = _step(root, node, character)
            if node.match is not None and may_stop:
                self.matched, self._pending = node.match, ""
                return available[: position if self._include else position - len(node.match)]
        self._node = node
        released = len(available) - node.held
        self._pending = available[released:]
        return available[:released]

    def flush(self) -> str:
        """The text still held back, once nothing more will come."""
        pending, self._pending = self._pending, ""
        return pending
