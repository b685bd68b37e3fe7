"""What the handlers share: engine, tokenizer, names."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeVar

from starlette.requests import Request

from looseleaf.errors import RequestTooLarge
from looseleaf.models.tokenizer import Tokenizer
from looseleaf.server.chat_prompt import ChatPrompts
from looseleaf.server.interface import EngineClient
from looseleaf.server.protocol.errors import model_not_found
from looseleaf.server.settings import Caller, FrontSettings, anonymous

T = TypeVar("T")

_LONG_TEXT = 32_768
"""Characters from which on tokenising would hold up other streams noticeably, and goes to a thread."""


class Front:
    def __init__(
        self,
        client: EngineClient,
        tokenizer: Tokenizer,
        settings: FrontSettings,
        identify: Callable[[Request], Caller] = anonymous,
    ) -> None:
        self.client = client
        self.tokenizer = tokenizer
        self.settings = settings
        self.identify = identify
        self.chat_prompts = ChatPrompts(tokenizer)
        self._texts: dict[int, str] = {}

    def new_id(self, prefix: str) -> str:
        return f"{prefix}-{uuid.uuid4().hex}"

    def now(self) -> int:
        """Unix time, in seconds."""
        return int(time.time())

    def served(self, model: str | None) -> tuple[str, str | None]:
        """The name to answer with, and the adapter. Raises an `ApiError` (404) for a name that is not served."""
        names = self.settings.served_model_names
        if model is None or model in names:
            return model or names[0], None
        adapters = self.client.info.adapters
        if model in adapters:
            return model, model
        raise model_not_found(model, [*names, *adapters])

    def check_fits(self, prompt: str | Sequence[int]) -> None:
        """Raises `RequestTooLarge` for what is so long that nothing must be computed to see that it cannot fit."""
        if isinstance(prompt, str):
            if len(prompt) <= _LONG_TEXT:
                return
            needed = len(prompt.encode("utf-8", "replace")) // self.tokenizer.longest_token
        else:
            needed = len(prompt)
        limit = self.client.info.largest_request
        if needed >= limit:
            at_least = "at least " if isinstance(prompt, str) else ""
            raise RequestTooLarge(
                f"The prompt has {at_least}{needed} tokens, and prompt and output together may have {limit}.",
                needed=needed + 1,
                limit=limit,
                hint="Shorten the prompt.",
            )

    async def in_background(self, size: int, work: Callable[[], T]) -> T:
        """`work()`, in a thread if the text it works on has many characters (the tokenizer releases the lock)."""
        return await asyncio.to_thread(work) if size > _LONG_TEXT else work()

    @cached_property
    def spellings(self) -> dict[int, bytes]:
        """The bytes of each token."""
        return self.tokenizer.token_spellings()[0]

    def token_bytes(self, token_id: int) -> bytes:
        return self.spellings.get(token_id, b"")

    def token_text(self, token_id: int) -> str:
        """A token's own text; one that is only part of a character is written as its bytes, as OpenAI does."""
        text = self._texts.get(token_id)
        if text is None:
            spelled = self.token_bytes(token_id)
            try:
                text = spelled.decode("utf-8")
            except UnicodeDecodeError:
                text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)
            self._texts[token_id] = text
        return text
