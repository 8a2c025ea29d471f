"""OpenAI's chat completions and everybody who speaks them: `data: {chat.completion.chunk}` up to `[DONE]`.

Also the stream whose objects call themselves `chat.completion` and which has no `[DONE]`: a finish reason ends it too. What
the vendors add is read by `openai_choices`; who they are, `vendors` knows.
"""

from __future__ import annotations

import re

from analytics.decoded.dialect import ExchangeInfo
from analytics.dialects.openai_choices import ChoicesReader

_OBJECT = re.compile(rb'"object"\s*:\s*"chat\.completion')
_CHOICES = re.compile(rb'"choices"\s*:\s*(\[\s*\{|\[\s*\]|null)')


class OpenAIChat:
    name = "openai_chat"
    provider = "openai"
    operation = "chat"

    def claims(self, exchange: ExchangeInfo) -> int:
        path = exchange.path.partition("?")[0].rstrip("/")
        if path.endswith("/chat/completions"):
            return 5
        return 1 if path.endswith("/chat") or "/serving-endpoints/" in path else 0

    def recognises(self, name: str, data: bytes) -> int:
        if name not in ("", "message", "error", "completion", "chunk"):
            return 0
        if _OBJECT.search(data):
            return 8
        choices = _CHOICES.search(data)
        if choices is None:
            return 0
        return 6 if b'"delta"' in data or b'"message"' in data else 2

    def reader(self, exchange: ExchangeInfo) -> ChoicesReader:
        return ChoicesReader()


DIALECT = OpenAIChat()
