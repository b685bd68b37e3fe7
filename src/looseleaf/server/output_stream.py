"""Tokens in, text out, for one sample: detokenising and stop strings are the front's work."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from looseleaf.engine.sampling_params import MAX_COUNT, SamplingParams
from looseleaf.engine.stop import Finish, StopChecker
from looseleaf.models.tokenizer import Tokenizer
from looseleaf.server.interface import PositionLogprobs, SampleUpdate


@dataclass(slots=True)
class Piece:
    """What one update adds to a sample."""

    index: int
    """Of the choice: prompt × n + sample."""
    text: str
    """Final: never half a character, never part of a stop string."""
    finish: Finish | None
    logprobs: list[PositionLogprobs] | None = None
    """Of the tokens that belong to the text."""


class OutputStream:
    """Follows one sample. The engine knows of all its ends but the stop strings; those are found here."""

    __slots__ = ("_checker", "_index", "_shows_end")

    def __init__(
        self, index: int, params: SamplingParams, tokenizer: Tokenizer, eos_token_ids: Collection[int]
    ) -> None:
        self._index = index
        self._checker = StopChecker(
            params,
            tokenizer.detokenizer(params.skip_special_tokens),
            eos_token_ids=eos_token_ids,
            max_tokens=MAX_COUNT,  # the engine counts them
        )
        self._shows_end = params.include_stop_str_in_output

    @property
    def num_tokens(self) -> int:
        """Tokens up to the end of the sample."""
        return self._checker.num_tokens

    @property
    def finish(self) -> Finish | None:
        return self._checker.finish

    def push(self, update: SampleUpdate) -> Piece:
        checker = self._checker
        if self.finish is not None:  # what was under way when a stop string ended it
            return Piece(self._index, "", None)
        token_ids = update.token_ids
        if len(token_ids) == 1:
            text, used = checker.advance(token_ids[0]), 1
        else:
            texts: list[str] = []
            for token_id in token_ids:
                texts.append(checker.advance(token_id))
                if checker.finish is not None:
                    break
            text, used = "".join(texts), len(texts)
        if update.finish_reason is not None and checker.finish is None:
            text += checker.end(Finish(update.finish_reason, update.stop_reason))
        logprobs = update.logprobs
        if logprobs is not None:
            logprobs = logprobs[: used - self._hides_last(checker.finish)]
        return Piece(self._index, text, checker.finish, logprobs)

    def _hides_last(self, finish: Finish | None) -> bool:
        """Whether the last token is one that ends the output, and so no part of its text."""
        return (
            finish is not None
            and finish.reason == "stop"
            and not isinstance(finish.stop_reason, str)
            and not self._shows_end
        )
