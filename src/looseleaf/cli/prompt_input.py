"""What the user wants answered: prompts from options, a file or a pipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from looseleaf.errors import InvalidRequest

GivenPrompt = str | list[int] | list[dict[str, Any]]
"""Text (to continue, or to answer as a chat), token ids (always to continue), or chat messages."""


def gather_prompts(prompts: Sequence[str], file: str | None) -> list[GivenPrompt]:
    """Those of `--prompt`, then those of `--file`; without either, those piped in, one a line.

    Raises `InvalidRequest` for no prompt, an empty one, or an unreadable file.
    """
    found: list[GivenPrompt] = list(prompts)
    if file is None and not found and not sys.stdin.isatty():
        file = "-"
    if file is not None:
        found += read_prompt_lines(_text(file), "standard input" if file == "-" else file)
    if not found:
        raise InvalidRequest("There is no prompt.", hint="Give --prompt TEXT or --file PATH, or pipe prompts in.")
    if "" in found:
        raise InvalidRequest("A prompt is empty.", hint="Pass at least one character.")
    return found


def read_prompt_lines(text: str, source: str) -> list[GivenPrompt]:
    """One prompt a line, blank lines skipped; JSON Lines if the first one begins with a brace."""
    # Not splitlines(): it takes U+2028, U+0085 and other characters that a prompt may hold for the end of a line.
    numbered = enumerate((line.removesuffix("\r") for line in text.split("\n")), 1)
    lines = [(number, line) for number, line in numbered if line.strip()]
    if not lines or not lines[0][1].lstrip().startswith("{"):
        return [line for _, line in lines]
    return [_read_object(line, f"line {number} of {source}") for number, line in lines]


def as_chat(prompt: GivenPrompt, system: str | None) -> GivenPrompt:
    """Text as the first message of a chat; what is messages or token ids already stays as it is."""
    if not isinstance(prompt, str):
        return prompt
    beginning = [{"role": "system", "content": system}] if system is not None else []
    return [*beginning, {"role": "user", "content": prompt}]


def _text(file: str) -> str:
    source = "standard input" if file == "-" else file
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(os.path.expanduser(file)).read_bytes()
        return content.decode("utf-8-sig")
    except OSError as error:
        raise InvalidRequest(f"The prompts in {source} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{source} is no UTF-8 text: byte {error.start} is wrong.") from error


def _read_object(line: str, where: str) -> GivenPrompt:
    hint = (
        'The first line begins with "{", so each is JSON: {"prompt": "text"}, {"prompt": [token ids]} or '
        '{"messages": [{"role": "user", "content": "text"}]}.'
    )
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} is no JSON: {error}.", hint=hint) from error
    if not isinstance(value, dict) or len(value) != 1 or not {"prompt", "messages"} & value.keys():
        keys = f"the keys {', '.join(value)}" if isinstance(value, dict) and value else "neither prompt nor messages"
        raise InvalidRequest(f"{where} has {keys}.", hint=hint)
    prompt = value.get("prompt", value.get("messages"))
    wanted = (str, list) if "prompt" in value else (list,)
    if not isinstance(prompt, wanted) or not prompt:
        raise InvalidRequest(f"{where} holds an empty or unreadable prompt: {prompt!r}.", hint=hint)
    return prompt
