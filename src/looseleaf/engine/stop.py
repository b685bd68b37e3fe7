"""When one output ends, and which of its text may be shown so far."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from looseleaf.engine.grammar_state import GrammarState
from looseleaf.engine.outputs import FinishReason
from looseleaf.engine.sampling_params import SamplingParams
from looseleaf.engine.stop_strings import StopStrings


class Detokenizer(Protocol):
    """Turns tokens into text piece by piece; each piece is final."""

    def push(self, token_ids: Sequence[int], /) -> str: ...

    def finish(self) -> str: ...


class _NoText:
    """Of outputs whose text nobody asks for."""

    def push(self, _token_ids: Sequence[int], /) -> str:
        return ""

    def finish(self) -> str:
        return ""


NO_TEXT = _NoText()


@dataclass(frozen=True, slots=True)
class Finish:
    reason: FinishReason
    stop_reason: int | str | None = None
    """The stop token id or stop string, or what went wrong; None for an end-of-sequence token, a length or an abort."""


class StopChecker:
    """Follows one output token by token.

    An end counts from token `min_tokens + 1` on. A token that ends the output is no part of its text unless
    `include_stop_str_in_output`; nor is a stop string. Where a grammar allows nothing more, the output ends
    with the token that completed it. If several ends fall on one token: end-of-sequence, stop token, stop string,
    grammar, length, in this order.
    """

    __slots__ = (
        "_detokenizer",
        "_eos_token_ids",
        "_include",
        "_max_tokens",
        "_min_tokens",
        "_stop_token_ids",
        "_strings",
        "finish",
        "grammar",
        "num_tokens",
    )

    def __init__(
        self,
        params: SamplingParams,
        detokenizer: Detokenizer,
        *,
        eos_token_ids: Collection[int],
        max_tokens: int,
        grammar: GrammarState | None = None,
    ) -> None:
        """`max_tokens`: the request's, already bounded by the model's maximum length less the prompt. `grammar`: what
        the output follows, at its beginning; it advances with the output from here on."""
        self._detokenizer = detokenizer
        self._eos_token_ids = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        self._stop_token_ids = frozenset(params.stop_token_ids)
        self._include = params.include_stop_str_in_output
        self._strings = StopStrings(tuple(params.stop), include_in_output=self._include) if params.stop else None
        self._min_tokens = params.min_tokens
        self._max_tokens = max_tokens
        self.grammar = grammar
        self.num_tokens = 0
        self.finish: Finish | None = None

    def advance(self, token_id: int) -> str:
        """Take one more token; returns the text that may now be shown and sets `finish` at the end."""
        self.num_tokens += 1
        may_stop = self.num_tokens > self._min_tokens
        if may_stop and token_id in self._eos_token_ids:
            self.finish = Finish("stop")
        elif may_stop and token_id in self._stop_token_ids:
            self.finish = Finish("stop", token_id)
        text = ""
        if self.finish is None or self._include:
            text = self._watch(self._detokenizer.push([token_id]), may_stop)
        complete = self.finish is None and self.grammar is not None and self.grammar.advance(token_id)
        at_limit = self.num_tokens >= self._max_tokens
        if self.finish is not None or complete or at_limit:
            text += self._close(may_stop)
        if self.finish is None and complete:
            self.finish = Finish("stop")
        if self.finish is None and at_limit:
            self.finish = Finish("length")
        return text

    def end(self, finish: Finish) -> str:
        """End now, from outside; returns the text held back. No effect on an output that has ended."""
        if self.finish is not None:
            return ""
        text = self._close(may_stop=False)
        self.finish = finish
        return text

    def _watch(self, text: str, may_stop: bool) -> str:
        if self._strings is None:
            return text
        # What follows an end, such as the end token's own text, is not searched.
        text = self._strings.push(text, may_stop=may_stop and self.finish is None)
        if self.finish is None and self._strings.matched is not None:
            self.finish = Finish("stop", self._strings.matched)
        return text

    def _close(self, may_stop: bool) -> str:
        """Text that was waiting for more: half a character, or what might have become a stop string."""
        text = self._watch(self._detokenizer.finish(), may_stop)
        return text if self._strings is None else text + self._strings.flush()
