"""The engine's logprobs in the two shapes that OpenAI gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from looseleaf.server.front import Front
from looseleaf.server.interface import PositionLogprobs, TokenLogprob
from looseleaf.server.protocol.errors import finite


def chat_logprobs(front: Front, positions: Sequence[PositionLogprobs] | None, num_top: int) -> dict[str, Any] | None:
    if positions is None:
        return None
    content = []
    for position in positions:
        # The likeliest come after the token itself, which may be one of them.
        likeliest = sorted(position, key=lambda entry: entry.rank or 0)[:num_top]
        content.append(
            _chat_entry(front, position[0]) | {"top_logprobs": [_chat_entry(front, entry) for entry in likeliest]}
        )
    return {"content": content, "refusal": None}


def _chat_entry(front: Front, entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token": front.token_text(entry.token_id),
        "logprob": finite(entry.logprob),
        "bytes": list(front.token_bytes(entry.token_id)),
    }


class CompletionLogprobs:
    """Of one choice; knows how long the text before is."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._offset = 0

    def skip(self, text: str) -> None:
        """Text that has no logprobs."""
        self._offset += len(text)

    def first_token(self, token_id: int) -> dict[str, Any]:
        """A prompt's first token, which nothing predicts."""
        return self._entry([(token_id, None, None)])

    def of(self, positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
        return self._entry([(position[0].token_id, finite(position[0].logprob), position) for position in positions])

    def _entry(self, tokens: Sequence[tuple[int, float | None, PositionLogprobs | None]]) -> dict[str, Any]:
        text = self._front.token_text
        result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token_id, logprob, position in tokens:
            result["tokens"].append(text(token_id))
            result["token_logprobs"].append(logprob)
            # The token itself is listed too, even where it is none of the likeliest.
            result["top_logprobs"].append(
                None if position is None else {text(e.token_id): finite(e.logprob) for e in position}
            )
            result["text_offset"].append(self._offset)
            self._offset += len(self._front.token_bytes(token_id).decode("utf-8", "ignore"))
        return result


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The logprobs of one choice from those of its pieces."""
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [item for part in parts for item in part[name]] for name in names}
