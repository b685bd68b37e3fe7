"""What an unbounded prefix cache would find, and how much of a trace's prompts is in use at a time."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from looseleaf.replay.trace import Runs


@dataclass(slots=True, eq=False)
class _Node:
    """Consecutive virtual tokens that follow on its parent's."""

    first: int
    length: int
    used: float
    children: dict[int, _Node] = field(default_factory=dict)


class PrefixTree:
    """Every prompt so far, each token that prompts have in common once. Prompts are added in order of arrival."""

    def __init__(self, window: float) -> None:
        """`window`: seconds for which a token belongs to the working set after its last use."""
        self._window = window
        self._expired = -window
        self._root = _Node(-1, 0, -1.0)
        self.num_tokens = 0
        """Different ones: what an unbounded cache holds."""
        self.working_set = 0
        """Of them, those used within the window."""
        self._uses: deque[tuple[float, _Node]] = deque()
        self._splits: list[tuple[float, int, _Node]] = []
        """What was split off after its last use: a heap, for these come in any order of their use."""
        self._num_splits = 0

    def add(self, runs: Runs | None, prompt_tokens: int, now: float) -> int:
        """Tokens of the prompt that were there already, from its beginning; `runs` is None where it shares nothing."""
        self._expire(now)
        if runs is None:
            node = _Node(-1, prompt_tokens, now)
            self.num_tokens += prompt_tokens
            self._use(node, now, is_new=True)
            return 0
        node, common = self._root, 0
        for first, length in runs:
            while length:
                child = node.children.get(first)
                if child is None:
                    child = node.children[first] = _Node(first, length, now)
                    self.num_tokens += length
                    self._use(child, now, is_new=True)
                else:
                    if child.length > length:
                        self._split(child, length)
                    common += child.length
                    self._use(child, now)
                node = child
                first, length = first + child.length, length - child.length
        return common

    def _split(self, node: _Node, length: int) -> None:
        tail = _Node(node.first + length, node.length - length, node.used, node.children)
        node.length, node.children = length, {tail.first: tail}
        if node.used >= self._expired:
            self._num_splits += 1
            heapq.heappush(self._splits, (tail.used, self._num_splits, tail))

    def _use(self, node: _Node, now: float, *, is_new: bool = False) -> None:
        if is_new or node.used < self._expired:
            self.working_set += node.length
        elif node.used == now:
            return
        node.used = now
        self._uses.append((now, node))

    def _expire(self, now: float) -> None:
        self._expired = now - self._window
        while self._uses and self._uses[0][0] < self._expired:
            used, node = self._uses.popleft()
            if node.used == used:
                self.working_set -= node.length
        while self._splits and self._splits[0][0] < self._expired:
            used, _, node = heapq.heappop(self._splits)
            if node.used == used:
                self.working_set -= node.length
