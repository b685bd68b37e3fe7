"""Where one output stands in the grammar that it follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from llguidance import LLMatcher


class GrammarState:
    """The tokens that may come next: a function of the grammar and the tokens so far.

    llguidance's copies share a cache of lexer states that has a bound. So that what one output needs is never another's
    failure, a state that runs into a bound starts over with a cache of its own; it fails if that is not enough.
    """

    def __init__(self, compile: Callable[[], LLMatcher], vocab_size: int, matcher: LLMatcher | None = None) -> None:
        """At the beginning. `compile`: a new matcher of the grammar; `matcher`: one that was copied."""
        self._compile = compile
        self._matcher = matcher or compile()
        self._vocab_size = vocab_size
        self._words = np.zeros(-(-vocab_size // 32), np.int32)
        self._token_ids: list[int] = []

    def copy(self) -> GrammarState:
        """An independent one at the same place; microseconds."""
        copy = GrammarState(self._compile, self._vocab_size, self._matcher.deep_copy())
        copy._token_ids = list(self._token_ids)
        return copy

    @property
    def error(self) -> str:
        """Why it can go no further, such as a bound that was exceeded; empty in health."""
        return self._matcher.get_error() if self._matcher.is_error() else ""

    def advance(self, token_id: int) -> bool:
        """Take one token that is no end; returns whether it completes the output: nothing may follow."""
        self._token_ids.append(token_id)
        if not self._matcher.consume_token(token_id):
            self._start_over()
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next, `[vocab]`; none where the state has an error."""
        self._fill()
        if self._matcher.is_error():
            self._start_over()
            self._fill()
            if self._matcher.is_error():
                return np.zeros(self._vocab_size, np.bool_)
        bits = np.unpackbits(self._words.view(np.uint8), count=self._vocab_size, bitorder="little")
        return bits.view(np.bool_)

    def restrict(self, logits: NDArray[np.float32], end_token_ids: NDArray[np.int64]) -> None:
        """Forbid in one row (`[vocab]`) what may not come next; ends may where the output is complete as it is."""
        allowed = self.allowed()
        if end_token_ids.size and self._matcher.is_accepting() and not self._matcher.is_error():
            allowed[end_token_ids] = True
        logits[~allowed] = -np.inf

    def _fill(self) -> None:
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)

    def _start_over(self) -> None:
        self._matcher = self._compile()
        self._matcher.consume_tokens(self._token_ids)
