"""What a caller may pass as a prompt, and how it becomes token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from looseleaf.errors import InvalidRequest
from looseleaf.models.tokenizer import Tokenizer

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or the messages of a chat."""


class InvalidPrompt(InvalidRequest, ValueError):
    """The prompt is empty, or is not made of what the model reads."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt ready for the engine; `text` is None where the caller gave token ids."""

    token_ids: list[int]
    text: str | None


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, or a list of them, as a list."""
    if isinstance(prompts, str):
        return [prompts]
    _check_kind(prompts)
    if len(prompts) == 0:
        raise InvalidPrompt("There is no prompt.", hint="Pass at least one prompt, and at least one token in it.")
    first = prompts[0]
    if isinstance(first, Mapping | int | np.integer):
        return [prompts]  # type: ignore[list-item]  # one level of a recursive type: told apart just above
    return list(prompts)  # type: ignore[arg-type]


def read_prompt(prompt: Prompt, tokenizer: Tokenizer, vocab_size: int) -> TokenPrompt:
    """Tokenise and check one prompt. Raises `InvalidPrompt`, or the chat template's own typed error."""
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidPrompt("The prompt is empty.", hint="Pass at least one character.")
        return TokenPrompt(_checked(tokenizer.encode(prompt), vocab_size), prompt)
    _check_kind(prompt)
    if len(prompt) and isinstance(prompt[0], Mapping):
        text = tokenizer.apply_chat_template(prompt)  # type: ignore[arg-type]  # mypy cannot narrow by an item's type
        return TokenPrompt(_checked(tokenizer.encode(text, add_special_tokens=False), vocab_size), text)
    return TokenPrompt(_checked(prompt, vocab_size), None)


def _check_kind(prompt: object) -> None:
    """Bytes are sequences of integers too, but nobody means token ids by them."""
    if not isinstance(prompt, Sequence | np.ndarray) or isinstance(prompt, bytes | bytearray | memoryview):
        raise InvalidPrompt(
            f"A prompt of type {type(prompt).__name__} is not understood.",
            hint="Pass text, token ids, chat messages, or a list of these.",
        )


def _checked(token_ids: Sequence[Any] | np.ndarray[Any, Any], vocab_size: int) -> list[int]:
    if len(token_ids) == 0:
        raise InvalidPrompt("The prompt has no tokens.", hint="Pass at least one token.")
    ids: list[int] = []
    for position, token in enumerate(token_ids):
        if isinstance(token, bool) or not isinstance(token, int | np.integer):
            raise InvalidPrompt(
                f"Token {position} of the prompt is {token!r}, a {type(token).__name__}.",
                hint="A prompt is text, a list of integer token ids, or a list of chat messages.",
            )
        if not 0 <= token < vocab_size:
            raise InvalidPrompt(
                f"Token {position} of the prompt is {token}, outside the vocabulary of {vocab_size} tokens.",
                hint=f"Token ids are 0 to {vocab_size - 1}.",
            )
        ids.append(int(token))
    return ids
