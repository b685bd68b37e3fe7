"""From what is required of an output to the state in which it begins."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from looseleaf.engine.grammar_limits import parser_limits
from looseleaf.engine.grammar_state import GrammarState
from looseleaf.engine.grammar_trial import GrammarTrial
from looseleaf.engine.sampling_errors import InvalidGrammar
from looseleaf.engine.structured import grammar_text
from looseleaf.models.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

TRIAL = GrammarTrial()
CACHED = 64
"""Compiled grammars kept; the one that was used longest ago goes."""


class GrammarCompiler:
    """Compiles grammars for one model's tokens, once each, within bounds on size and work.

    The grammars run on llguidance (derivatives of regular expressions and an Earley parser): little is enumerated when
    one is compiled. What compiling and each token may cost is bounded, see `grammar_limits` and `grammar_trial`.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """`vocab_size`: the model's, which may exceed the tokenizer's."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._compiled: OrderedDict[str, GrammarState] = OrderedDict()

    def start(self, structured: Mapping[str, Any]) -> GrammarState:
        """The state at the beginning of an output, to be copied for each. `structured`: as `SamplingParams` holds it.

        Raises `InvalidGrammar` for what is malformed, unsupported, impossible to satisfy or too costly.
        """
        text = grammar_text(structured)
        state = self._compiled.get(text)
        if state is None:
            state = self._compiled[text] = self._compile(text)
            if len(self._compiled) > CACHED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(text)
        return state

    def _compile(self, text: str) -> GrammarState:
        if not self._eos_token_ids:
            raise InvalidGrammar("The model names no end-of-sequence token, so no structured output could end.")
        error = TRIAL.run(text)
        if not error:
            state = GrammarState(lambda: self._matcher(text), self._vocab_size)
            if state.copy().allowed().any():
                return state
            error = state.error or "no output that this model's tokens can spell satisfies it"
        raise InvalidGrammar(f"The grammar cannot be followed: {_in_short(error)}.")

    def _matcher(self, text: str) -> LLMatcher:
        from llguidance import LLMatcher

        return LLMatcher(self._tokens, text, log_level=0, limits=parser_limits())

    @cached_property
    def _tokens(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper

        tokens = _Tokens(self._tokenizer, self._vocab_size, self._eos_token_ids)
        return LLTokenizer(TokenizerWrapper(tokens), eos_token=list(self._eos_token_ids))


class _Tokens:
    """A vocabulary as llguidance wants it: bytes by token id, and how text is cut into tokens."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        spellings, special = tokenizer.token_spellings()
        self.tokens = [spellings.get(index, b"") for index in range(vocab_size)]
        self.special_token_ids = sorted(index for index in special | set(eos_token_ids) if index < vocab_size)
        self.eos_token_id = eos_token_ids[0]
        self.bos_token_id = None
        self._tokenizer = tokenizer
        plain = (index for index in range(vocab_size) if index not in set(self.special_token_ids))
        self._ids = {self.tokens[index]: index for index in plain if self.tokens[index]}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        try:
            ids = self._tokenizer.encode(data.decode(), add_special_tokens=False)
        except UnicodeDecodeError:
            return self._greedy(data)
        # Tokenizers that put a space before a text, or find a special token in it, spell something else.
        spelled = all(index < len(self.tokens) and index not in self.special_token_ids for index in ids)
        if spelled and b"".join(self.tokens[index] for index in ids) == data:
            return ids
        return self._greedy(data)

    def _greedy(self, data: bytes) -> list[int]:
        """Always the longest token that fits; stops where none does."""
        ids, start = [], 0
        while start < len(data):
            for end in range(min(len(data), start + self._longest), start, -1):
                if (index := self._ids.get(data[start:end])) is not None:
                    ids.append(index)
                    start = end
                    break
            else:
                break
        return ids


def _in_short(message: str) -> str:
    line = " ".join(message.replace("<non-verbose/>", "").split()).rstrip(".")
    return line if len(line) <= 300 else line[:297] + "..."
