"""Which block holds which tokens, after which others: how a new prompt finds what is already computed.

Entries form trees: an entry is a block, its tokens, and the entry of the block before it. A keyed hash of everything
up to a block's end narrows the search to one block; the stored tokens, and the chain of entries back to the scope's
root, decide. So a collision costs a miss and never gives away another's keys and values.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from itertools import islice, repeat

import numpy as np
from numpy.typing import NDArray

from looseleaf.memory.interface import Blocks
from looseleaf.memory.prefix import Divergence, Prefix, PrefixMatch, TokenIds

NO_ENTRY = 0
_CANDIDATES = 64
"""Continuations of one entry that are compared for a match in part: the newest."""
_FIRST_LOOKED_UP = 16
"""Blocks of a prefix; if all are here, four times as many next."""
_MULTIPLIERS_AT_ONCE = 4096
_FEW_ROOTS = 1024
"""So many are kept without asking who needs them."""


class PrefixIndex:
    """Entries are numbered, never twice: 1, 2, … for blocks; −1, −2, … for the roots of scopes.

    The key of a block is the multilinear hash (Carter and Wegman 1979) of its scope and all tokens up to its end, with
    secret random multipliers: nobody outside can construct collisions, and a whole prompt is hashed in one pass.
    """

    def __init__(self, num_blocks: int, block_size: int, step: Callable[[], int], tips: NDArray[np.int64]) -> None:
        """`step` says which step it is. What is entered in a step is computed in it: until the next one it may be
        shared, but not be copied from. `tips`: the owner's, the entries behind which it may still enter something."""
        self.block_size = block_size
        self._step = step
        self._tips = tips
        self.entries: NDArray[np.int64] = np.zeros(num_blocks, np.int64)
        """By block: its entry, or 0."""
        self.tokens: NDArray[np.int32] = np.zeros((num_blocks, block_size), np.int32)
        self.counts: NDArray[np.int32] = np.zeros(num_blocks, np.int32)
        """By block: tokens it holds; below `block_size` for the last block of a sequence that ended."""
        self._parents: NDArray[np.int64] = np.zeros(num_blocks, np.int64)
        self._keys: NDArray[np.uint64] = np.zeros(num_blocks, np.uint64)
        self._steps: NDArray[np.int64] = np.full(num_blocks, -1, np.int64)
        self._block_of_key: dict[int, int] = {}
        self._children: dict[int, int | dict[int, None]] = {}
        """By entry: the block that continues it, or several, oldest first."""
        self._roots: dict[str, tuple[int, int]] = {}
        self._num_roots = 0
        """Ever made."""
        self._most_roots = _FEW_ROOTS
        self._next_entry = 1
        self._random = np.random.Generator(np.random.PCG64(secrets.randbits(128)))
        self._multipliers: NDArray[np.uint64] = np.empty(0, np.uint64)
        self._version = 0
        self._last_entered = -1
        """The step in which something was entered last."""

    def __len__(self) -> int:
        """Entries, those of unfinished blocks not counted."""
        return len(self._block_of_key)

    def root(self, scope: str) -> tuple[int, int]:
        """The entry and the key from which all chains of a scope start."""
        found = self._roots.get(scope)
        if found is None:
            if len(self._roots) >= self._most_roots:
                self._forget_roots()
            self._num_roots += 1
            found = self._roots[scope] = (-self._num_roots, secrets.randbits(64))
        return found

    def match(self, prefix: Prefix) -> PrefixMatch:
        """The longest beginning of `prefix` that is here, its last token excepted."""
        now = self._version, self._last_entered == self._step()
        if prefix._found is not None and prefix._found_in == now:
            return prefix._found
        tokens, size = prefix.tokens, self.block_size
        root, root_key = self.root(prefix.scope)
        most = min((len(tokens) - 1) // size, len(self.entries))
        if prefix._root_key != root_key or len(prefix._keys) < most:  # a waiting prompt is looked for again and again
            prefix._keys, prefix._root_key = self._block_keys(root_key, tokens, 0, most), root_key
        keys = prefix._keys
        blocks = self._blocks_of(keys[:most])
        count = len(blocks)
        if count:
            chain = self.entries.take(blocks)
            rows = self.tokens.take(blocks, axis=0) == tokens[: count * size].reshape(-1, size)
            follows = self._parents.take(blocks)
            follows[1:] -= chain[:-1]
            follows[0] -= root
            if not rows.all() or follows.any():
                count = int((rows.all(axis=1) & (follows == 0)).argmin())
                blocks = blocks[:count]
        tip, key = (int(self.entries[blocks[-1]]), int(keys[count - 1])) if count else (root, root_key)
        start = count * size
        tail, common, other = self._closest(tip, tokens[start : start + size], len(tokens) - 1 - start)
        divergence = None if other is None else Divergence(start + common, other)
        prefix._found = PrefixMatch(blocks, start, tail, common, divergence, tip, key)
        prefix._found_in = self._version, now[1]  # a new root may have changed the version
        return prefix._found

    def add(self, tip: int, key: int, tokens: TokenIds, start: int, blocks: Blocks) -> tuple[int, int, list[int]]:
        """Enter full `blocks`, which hold `tokens[start:]`, behind the entry `tip` with `key`.

        Returns the new two, and the blocks whose entries had to make way. A block whose tokens are known already is
        passed over: the chain goes on from the one that is here.
        """
        size, count = self.block_size, len(blocks)
        keys = self._block_keys(key, tokens, start, count)
        numbers = keys.tolist()
        rows = tokens[start : start + count * size].reshape(count, size)
        done = 0
        displaced: list[int] = []
        while done < count and (known := self._block_of_key.get(numbers[done])) is not None:
            # A prompt that another request computed meanwhile, or a collision.
            if self._parents[known] == tip and np.array_equal(self.tokens[known], rows[done]):
                tip = int(self.entries[known])
                done += 1
            else:
                displaced.append(known)
                self.forget([known])
        rest = numbers[done:]
        # One batch, unless keys collide within it: then each makes the one before it give way.
        together = len(rest) if len(set(rest)) == len(rest) else 1
        for first in range(done, count, together or 1):
            part = slice(first, first + together)
            # What else has these keys belongs to chains that have lost their beginning.
            stale = [self._block_of_key[number] for number in numbers[part] if number in self._block_of_key]
            self.forget(stale)
            displaced += stale
            tip = self._enter(tip, blocks[part], keys[part], rows[part])
        return tip, numbers[-1] if count else key, displaced

    def add_tail(self, tip: int, block: int, tokens: TokenIds) -> None:
        """Enter a block with fewer than `block_size` tokens, of a sequence that writes no more."""
        if (closest := self._closest(tip, tokens, len(tokens)))[1] == len(tokens) and closest[0] != block:
            return  # known
        self.entries[block] = self._next_entry
        self._next_entry += 1
        self._parents[block] = tip
        self.counts[block] = len(tokens)
        self.tokens[block, : len(tokens)] = tokens
        self._steps[block] = self._last_entered = self._step()
        self._adopt(tip, block)
        self._version += 1

    def forget(self, blocks: list[int]) -> None:
        """Remove the entries of `blocks`; what continued them can no longer be found."""
        for block in blocks:
            entry = int(self.entries[block])
            if entry == NO_ENTRY:
                continue
            if self.counts[block] == self.block_size:
                del self._block_of_key[int(self._keys[block])]
            parent = int(self._parents[block])
            siblings = self._children.get(parent)
            if isinstance(siblings, dict):
                siblings.pop(block, None)
                if not siblings:
                    del self._children[parent]
            elif siblings == block:
                del self._children[parent]
            self._children.pop(entry, None)
            self.entries[block] = NO_ENTRY
            self.counts[block] = 0
        self._version += 1

    def made_before(self, blocks: Blocks) -> NDArray[np.bool_]:
        """Which of the blocks were entered in an earlier step than this one."""
        earlier: NDArray[np.bool_] = (self.entries[blocks] != NO_ENTRY) & (self._steps[blocks] != self._step())
        return earlier

    def clear(self) -> None:
        """Forget everything. The roots stay: a chain that is being written remains where it was."""
        self._block_of_key.clear()
        self._children.clear()
        self.entries.fill(NO_ENTRY)
        self.counts.fill(0)
        self._version += 1

    def _enter(self, tip: int, blocks: Blocks, keys: NDArray[np.uint64], rows: NDArray[np.int32]) -> int:
        count = len(blocks)
        fresh = np.arange(self._next_entry, self._next_entry + count)
        self._next_entry += count
        self.entries[blocks] = fresh
        self._parents[blocks[0]] = tip
        self._parents[blocks[1:]] = fresh[:-1]
        self._keys[blocks] = keys
        self.tokens[blocks] = rows
        self.counts[blocks] = self.block_size
        self._steps[blocks] = self._last_entered = self._step()
        names = blocks.tolist()
        self._block_of_key.update(zip(keys.tolist(), names, strict=True))
        self._adopt(tip, names[0])
        self._children.update(zip(fresh[:-1].tolist(), names[1:], strict=True))
        self._version += 1
        return int(fresh[-1])

    def _forget_roots(self) -> None:
        """Scopes may come and go for ever: those that have no entry, and are not about to have one, are given up."""
        tips = set(self._tips.tolist())
        self._roots = {
            scope: root for scope, root in self._roots.items() if root[0] in self._children or root[0] in tips
        }
        self._most_roots = max(_FEW_ROOTS, 2 * len(self._roots))
        self._version += 1  # who has looked, and is to begin at a root, looks again

    def _adopt(self, parent: int, block: int) -> None:
        siblings = self._children.get(parent)
        if siblings is None:
            self._children[parent] = block
        elif isinstance(siblings, dict):
            siblings[block] = None
        elif siblings != block:
            self._children[parent] = {siblings: None, block: None}

    def _closest(self, tip: int, tokens: TokenIds, most: int) -> tuple[int, int, int | None]:
        """Of the blocks that continue `tip`: the one with the most tokens in common, how many (at most `most`), and
        its next token if that is another than that of `tokens`."""
        children = self._children.get(tip)
        if children is None or most <= 0:
            return -1, 0, None
        names = list(islice(reversed(children), _CANDIDATES)) if isinstance(children, dict) else [children]
        blocks = np.array(names, np.int64)
        blocks = blocks[self._steps[blocks] != self._step()]
        if not len(blocks):
            return -1, 0, None
        width = min(len(tokens), most)
        limits = np.minimum(self.counts[blocks], width)
        same = self.tokens[blocks, :width] == tokens[:width]
        same &= np.arange(width) < limits[:, None]
        lengths = np.where(same.all(axis=1), width, same.argmin(axis=1))
        best = int(lengths.argmax())
        common = int(lengths[best])
        other = int(self.tokens[blocks[best], common]) if common < limits[best] else None
        return (int(blocks[best]) if common else -1), common, other

    def _blocks_of(self, keys: NDArray[np.uint64]) -> Blocks:
        """The blocks that the keys lead to, up to the first one that leads nowhere."""
        blocks: list[int] = []
        start, size = 0, _FIRST_LOOKED_UP
        while start < len(keys):
            found = list(map(self._block_of_key.get, keys[start : start + size].tolist(), repeat(-1)))
            if -1 in found:
                blocks += found[: found.index(-1)]
                break
            blocks += found
            start, size = start + size, 4 * size
        return np.array(blocks, np.int32)

    def _block_keys(self, key: int, tokens: TokenIds, start: int, count: int) -> NDArray[np.uint64]:
        """Keys of `count` blocks from token `start` on, where `key` is that of everything before."""
        end = start + count * self.block_size
        while len(self._multipliers) < end:
            more = self._random.integers(0, 2**64, max(_MULTIPLIERS_AT_ONCE, len(self._multipliers)), np.uint64)
            self._multipliers = np.concatenate([self._multipliers, more | np.uint64(1)])
        # +1: token 0 would otherwise leave no trace. int64 and uint64 products wrap alike.
        products = (tokens[start:end].astype(np.uint64) + np.uint64(1)) * self._multipliers[start:end]
        sums = np.einsum("ij->i", products.reshape(count, self.block_size))
        keys: NDArray[np.uint64] = np.cumsum(sums, dtype=np.uint64) + np.uint64(key)
        return keys

    def audit(self) -> list[str]:
        """Differences within the index."""
        known = np.flatnonzero(self.entries)
        findings = [
            f"key {key} leads to block {block}, which is entered as {self._keys[block]}"
            for key, block in self._block_of_key.items()
            if not self.entries[block] or int(self._keys[block]) != key
        ]
        full = known[self.counts[known] == self.block_size]
        if len(full) != len(self._block_of_key):
            findings.append(f"{len(full)} full blocks are entered but {len(self._block_of_key)} keys exist")
        numbers = self.entries[known]
        if len(np.unique(numbers)) != len(numbers):
            findings.append("two blocks have the same entry")
        for parent, children in self._children.items():
            findings += [
                f"block {block} is listed behind entry {parent} but does not follow it"
                for block in (children if isinstance(children, dict) else (children,))
                if not self.entries[block] or self._parents[block] != parent
            ]
        return findings
